"""What launches take, and whether newcomers may begin beside streams that play."""

import math

import pytest

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.scheduling import (
    AUDIO_MARGIN_S,
    FRAMES_MARGIN_S,
    LONG_CODEC_STEP_S,
    LONG_PASS_BESIDE_S,
    LONG_PASS_S,
    MARGIN_S,
    MOST_CODEC_FRAMES,
    MOST_DEBT_S,
    MOST_PRESSED_DEBT_S,
    MOST_PROMPT_ROWS,
    MOST_SHARE,
    MOST_SURPRISE,
    NEWCOMERS_SHARE,
    PRESSED_PASS_S,
    SAVED_S,
    Cost,
    Pace,
    Playing,
    Room,
)

NOBODY = Room(math.inf, math.inf)


def line(fixed_s: float, each_s: float, *sizes: int) -> Cost:
    cost = Cost()
    for size in sizes:
        cost.note(size, fixed_s + size * each_s)
    return cost


def pace(*, launch_s: float = 0.01, step_s: float = 0.008, pass_s: float = 0.006, row_s: float = 0.0001) -> Pace:
    """Launches of the talker and steps of the codec that take the same time at any number of streams."""
    found = Pace(prompts=line(pass_s, row_s, 1, 100))
    found.frames.fixed_s = launch_s
    found.audio.each_s = step_s / MOST_CODEC_FRAMES
    return found


def test_a_cost_is_the_line_through_what_was_seen() -> None:
    cost = line(0.005, 0.001, 1, 10, 100)
    assert cost.of(50) == pytest.approx(0.055)
    assert cost.within(0.055) == pytest.approx(50)
    assert cost.within(0.001) < 0, "not even the smallest"


def test_while_nothing_was_seen_everything_fits() -> None:
    assert Cost().within(0.0) == math.inf
    assert Pace().room([Playing(0.0, 0)], 0.0).rows == math.inf


def test_launches_of_one_size_tell_little_about_others() -> None:
    cost = line(0.0, 0.01, 10, 10)
    assert cost.of(10) == pytest.approx(0.1)
    assert cost.of(1) < 0.1 < cost.of(100) < 1.0


def test_a_cost_follows_a_device_that_becomes_slower_and_ignores_single_mishaps() -> None:
    cost = line(0.0, 0.001, *([1, 10] * 20))
    cost.note(10, 100.0)
    assert cost.of(10) < MOST_SURPRISE * 0.01
    for _ in range(40):
        cost.note(1, 0.002)
        cost.note(10, 0.02)
    assert cost.of(10) == pytest.approx(0.02, rel=0.05)


def test_a_larger_launch_never_seems_cheaper() -> None:
    cost = Cost()
    cost.note(1, 0.1)
    cost.note(10, 0.05)
    assert cost.of(10) > cost.of(1)


def test_where_nobody_plays_there_is_room_for_all() -> None:
    assert pace().room([], 5.0) == NOBODY


def test_a_pass_ends_before_audio_that_waits_must_be_made() -> None:
    spare_s = 0.02
    playing = [Playing(5.0 + MARGIN_S + 0.008 + spare_s, MOST_CODEC_FRAMES)]
    assert pace().room(playing, 5.0).rows == pytest.approx((spare_s - 0.006) / 0.0001)


def test_who_has_no_frame_needs_one_after_the_audio_of_all_who_have() -> None:
    own_step_s, spare_s = 0.008 / MOST_CODEC_FRAMES, 0.02
    others = [Playing(50.0, MOST_CODEC_FRAMES), Playing(50.0, MOST_CODEC_FRAMES)]
    urgent = Playing(5.0 + MARGIN_S + 2 * 0.008 + 0.01 + own_step_s + spare_s, 0)
    assert pace().room([*others, urgent], 5.0).rows == pytest.approx((spare_s - 0.006) / 0.0001)


def test_the_one_that_runs_dry_first_decides_wherever_it_stands() -> None:
    many = [Playing(90.0, 0)] * 5
    alone = pace().room([Playing(5.2, 0)], 5.0).rows
    assert pace().room([*many, Playing(5.2, 0), *many], 5.0).rows == pytest.approx(alone)


def test_a_pass_beside_streams_that_play_is_short_whatever_they_have_in_hand() -> None:
    assert pace().room([Playing(90.0, 0)], 5.0).rows == pytest.approx((LONG_PASS_BESIDE_S - 0.006) / 0.0001)


def test_newcomers_must_be_able_to_go_on_themselves() -> None:
    """Their first frame lasts 80 ms: no more begin than get their second one in time."""
    slow = pace(step_s=0.128)
    playing = [Playing(90.0, 0)] * 3
    assert slow.room(playing, 5.0).streams == pytest.approx((FRAME_SECONDS - MARGIN_S - 0.01) / 0.001)
    playing += [Playing(5.08, 0)] * 4
    assert slow.room(playing, 5.0).streams == pytest.approx((FRAME_SECONDS - MARGIN_S - 0.01) / 0.001 - 4)


ENOUGH_S = 0.008 + 0.01 + AUDIO_MARGIN_S
"""For a full step of audio after a launch."""


def test_audio_is_due_as_far_as_a_launch_before_it_would_make_somebodys_too_late() -> None:
    first = Playing(5.0 + ENOUGH_S + 1e-6, MOST_CODEC_FRAMES)
    assert pace().audio_or_frame([first], math.inf, 8, 5.0) == (-math.inf, False), "nobody's"
    assert pace().audio_or_frame([first], math.inf, 8, 5.0 + 2e-6) == (first.dry_at, False)


def test_audio_that_can_wait_is_due_where_that_of_a_later_one_waits_for_it() -> None:
    later, last = Playing(5.0 + ENOUGH_S + 0.007, MOST_CODEC_FRAMES), Playing(90.0, 1)
    assert pace().audio_or_frame([last, later], math.inf, 8, 5.0).pressed_until == -math.inf
    soon = Playing(later.dry_at + 1e-4, 1)
    assert pace().audio_or_frame([last, soon, later, later, later], math.inf, 8, 5.0).pressed_until == soon.dry_at


def test_a_frame_comes_before_audio_that_can_wait_where_somebody_needs_it_sooner() -> None:
    waiting, frame_s = Playing(5.0 + 0.008 + 0.01 + FRAMES_MARGIN_S + 1e-6, MOST_CODEC_FRAMES), 0.01 + 2 * 0.008
    hungry_at = 5.0 + frame_s + FRAMES_MARGIN_S
    assert pace().audio_or_frame([waiting], hungry_at - 1e-6, 8, 5.0).frames_first
    assert not pace().audio_or_frame([waiting], hungry_at + 1e-6, 8, 5.0).frames_first, (
        "one more step of audio before it"
    )
    assert not pace().audio_or_frame([waiting], hungry_at - 1e-2, 8, 5.0 + 2e-6).frames_first, "that audio cannot wait"


def test_audio_is_made_in_large_pieces_where_the_device_is_too_slow_for_all() -> None:
    slow = pace(launch_s=FRAME_SECONDS)
    assert slow.audio_or_frame([Playing(5.0, 1)], 5.0, 8, 5.0) == (-math.inf, False)


def test_what_was_launched_while_the_device_computed_began_later() -> None:
    one = Pace()
    one.note_frames(8, 1.0, 1.02)
    one.note_audio(8, 1.005, 1.03)
    assert one.frames.of(8) == pytest.approx(0.02)
    assert one.audio.of(8) == pytest.approx(0.01)
    one.note_audio(8, 2.0, 2.01)
    assert one.audio.of(8) == pytest.approx(0.01), "it had been idle"


def test_newcomers_that_press_take_their_share_of_the_time() -> None:
    one = pace()
    one.note_pass(10, 0.1, beside=False)
    assert one.credit.balance_s == 0, "time that nobody missed"
    assert one.rows_on_credit() == 0
    one.lend()
    assert one.rows_on_credit() >= 1, "one pass"
    one.note_pass(10, 0.05, beside=True)
    assert one.rows_on_credit() == 0
    due_s = -one.credit.balance_s * (1 - NEWCOMERS_SHARE) / NEWCOMERS_SHARE
    one.note_others(0.99 * due_s, 1, 0)
    assert one.rows_on_credit() == 0
    one.note_others(0.02 * due_s, 1, 0)
    assert one.rows_on_credit() >= 1
    one.note_others(1e6, 1, 0)
    one.note_pass(1, 0.001, beside=True)
    assert one.rows_on_credit() == 0, "nothing is saved up"
    one.note_pass(10, 1e6, beside=True)
    assert one.credit.balance_s == -MOST_PRESSED_DEBT_S, "nor owed for ever"


def test_newcomers_take_turns_with_those_that_play() -> None:
    """By the share of the time that these leave: here a launch and a step for all take half of a frame's duration, and
    they are granted a quarter more than that.
    """
    one = pace(launch_s=FRAME_SECONDS / 4, step_s=FRAME_SECONDS / 4)
    assert one.need(MOST_CODEC_FRAMES) == pytest.approx(0.5)
    share = 1 - 0.5 * 1.25
    one.lend()
    assert one.turn.is_open
    one.note_pass(10, 0.004, beside=False)
    due_s = -one.turn.balance_s * (1 - share) / share
    one.note_others(0.99 * due_s, MOST_CODEC_FRAMES, 0)
    assert not one.turn.is_open
    one.note_others(0.02 * due_s, MOST_CODEC_FRAMES, 0)
    assert one.turn.is_open
    one.note_others(1e6, MOST_CODEC_FRAMES, 0)
    assert one.turn.balance_s == pytest.approx(SAVED_S * share / (1 - share)), "little is saved up"
    one.note_pass(10, 1e6, beside=False)
    assert one.turn.balance_s == -MOST_DEBT_S, "nor owed for long"


def test_the_fuller_a_device_the_more_than_they_need_is_granted_to_those_that_play() -> None:
    for need, granted in ((0.2, 0.208), (0.6, 0.816)):
        one, share = pace(launch_s=need * FRAME_SECONDS, step_s=0.0), 1 - granted
        one.note_others(1e6, 1, 0)
        assert one.turn.balance_s == pytest.approx(SAVED_S * share / (1 - share))


def test_what_a_host_takes_beside_its_device_is_granted_to_those_that_play_and_left_free_for_them() -> None:
    one = pace(launch_s=0.2 * FRAME_SECONDS, step_s=0.0)
    playing = [Playing(dry_at=1.0, frames=0)]
    before = one.room(playing, 0.95)
    one.note_others(0.2 * FRAME_SECONDS, 1, 1)
    assert one.slowdown == pytest.approx(1.0)
    one.note_others(0.2 * FRAME_SECONDS, 1, 0)  # chunks are handed out
    for _ in range(1000):
        one.note_others(0.6 * FRAME_SECONDS, 1, 1)
    assert one.slowdown == pytest.approx(3.0, rel=0.01)
    share = 1 - 0.6 * (1 + 0.6**2)
    assert one.turn.balance_s == pytest.approx(SAVED_S * share / (1 - share), rel=0.05)
    assert one.room(playing, 0.95).rows < before.rows
    for _ in range(1000):
        one.note_others(0.1 * FRAME_SECONDS, 1, 1)
    assert one.slowdown == 1.0, "a device that is quicker than thought slows nobody down"


def test_what_frames_took_before_launches_were_known_slows_nobody_down() -> None:
    one = Pace()
    one.note_others(1.0, 1, 1)
    one.frames.fixed_s = 0.2 * FRAME_SECONDS
    one.note_others(0.2 * FRAME_SECONDS, 1, 1)
    assert one.slowdown == pytest.approx(1.0)


def test_who_needs_all_the_time_leaves_newcomers_their_least_share() -> None:
    one = pace(launch_s=2 * FRAME_SECONDS)
    one.note_others(1e6, 1, 0)
    assert one.turn.balance_s == pytest.approx(SAVED_S * NEWCOMERS_SHARE / (1 - NEWCOMERS_SHARE))


def test_who_needs_hardly_any_time_leaves_newcomers_nearly_all() -> None:
    one = Pace()
    one.note_others(1e6, 1, 0)
    assert one.turn.balance_s == pytest.approx(SAVED_S * MOST_SHARE / (1 - MOST_SHARE))


def test_a_pass_on_credit_is_short_and_takes_one_at_least() -> None:
    one = pace(pass_s=0.01, row_s=0.001)
    one.lend()
    assert one.rows_on_credit() == pytest.approx((PRESSED_PASS_S - 0.01) / 0.001)
    slow = pace(pass_s=1.0)
    slow.lend()
    assert slow.rows_on_credit() == 1


def test_launches_of_a_slow_device_are_short() -> None:
    fast, slow = pace(), pace(pass_s=LONG_PASS_S / 2, row_s=LONG_PASS_S / 41, step_s=0.0)
    assert fast.most_rows == pytest.approx((LONG_PASS_S - 0.006) / 0.0001, abs=1)
    assert fast.most_frames == MOST_CODEC_FRAMES
    slow.audio.each_s = LONG_CODEC_STEP_S / 2.5
    assert (slow.most_rows, slow.most_frames) == (20, 2)
    slow.audio.each_s = 10 * LONG_CODEC_STEP_S
    assert slow.most_frames == 1, "one at least"
    assert (Pace().most_rows, Pace().most_frames) == (MOST_PROMPT_ROWS, MOST_CODEC_FRAMES), "nothing is known"


def test_a_device_is_slow_where_a_frame_of_all_takes_most_of_its_duration() -> None:
    pace = Pace()
    assert not pace.is_slow(1000), "nothing was seen"
    for streams in (1, 8):
        pace.frames.note(streams, 0.001 * streams)
        pace.audio.note(streams, 0.003 * streams)
    assert (pace.is_slow(17), pace.is_slow(19)) == (False, True)
