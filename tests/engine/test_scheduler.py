"""The policy: what is launched next, for any state of the streams."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.costs import (
    LEAST_SHARE,
    MOST_CODEC_FRAMES,
    MOST_DEBT_S,
    MOST_FORCED_DEBT_S,
    MOST_SURPRISE,
    Budget,
    Cost,
    Costs,
)
from megatalker.engine.scheduler import (
    ENOUGH_S,
    FORCED_PREFILL_S,
    LONG_PREFILL_S,
    MARGIN_S,
    MOST_CODEC_STREAMS,
    SOON_S,
    UNBATCHED_STREAMS,
    CodecLaunch,
    DecodeLaunch,
    PrefillLaunch,
    Rest,
    Stream,
    View,
    fitting,
    pick,
    room,
)

NOW = 50.0


def line(fixed_s: float, each_s: float, *sizes: int) -> Cost:
    cost = Cost()
    for size in sizes:
        cost.observe(size, fixed_s + size * each_s)
    return cost


def known(*, prefill: Cost | None = None, speed: float = 1.0) -> Costs:
    """About an H200, or a device this many times as fast."""
    costs = Costs(
        prefill=prefill or line(0.008 / speed, 1.5e-5 / speed, 20, 2000),
        frames=line(0.004 / speed, 3e-5 / speed, 8, 400),
        audio=line(0.001 / speed, 6e-5 / speed, 8, 128),
    )
    costs.observe_serving(FRAME_SECONDS * costs.need(1), 500, 1)
    return costs


def stream(place: int, in_hand_s: float = math.inf, **facts: object) -> Stream:
    opening = in_hand_s == math.inf
    ready = opening and "frames" in facts
    plain = Stream(place, NOW + in_hand_s, NOW - 1, chunk_ready=ready, next_at=NOW)
    return replace(plain, **facts)  # type: ignore[arg-type]


def view(*streams: Stream, costs: Costs | None = None, balance_s: float = 1.0, **facts: object) -> View:
    budget = Budget(balance_s, balance_s)
    plain = View(streams, costs or known(), budget, held=len(streams), running=len(streams))
    return replace(plain, **facts)  # type: ignore[arg-type]


# ---- what launches take


def test_a_cost_is_the_line_through_what_was_seen() -> None:
    cost = line(0.005, 0.001, 1, 10, 100)
    assert cost.predict(50) == pytest.approx(0.055)
    assert cost.size_within(0.055) == pytest.approx(50)
    assert cost.size_within(0.001) < 0, "not even the smallest"
    assert Cost().size_within(0.0) == math.inf, "nothing is known"
    one_size = line(0.0, 0.01, 10, 10)
    assert one_size.predict(10) == pytest.approx(0.1)
    assert one_size.predict(1) < 0.1 < one_size.predict(100) < 1.0, "launches of one size tell little about others"


def test_a_cost_follows_a_device_that_becomes_slower_and_ignores_single_mishaps() -> None:
    cost = line(0.0, 0.001, *([1, 10] * 20))
    cost.observe(10, 100.0)
    assert cost.predict(10) < MOST_SURPRISE * 0.01
    for _ in range(40):
        cost.observe(1, 0.002)
        cost.observe(10, 0.02)
    assert cost.predict(10) == pytest.approx(0.02, rel=0.05)
    cost.observe(10, 0.001)
    assert cost.predict(10) > cost.predict(1), "a larger launch never seems cheaper"


def test_what_was_launched_while_the_device_computed_began_later() -> None:
    costs = Costs()
    costs.observe_frames(8, 1.0, 1.02)
    costs.observe_audio(8, 1.005, 1.03)
    assert costs.frames.predict(8) == pytest.approx(0.02)
    assert costs.audio.predict(8) == pytest.approx(0.01)
    costs.observe_audio(8, 2.0, 2.01)
    assert costs.audio.predict(8) == pytest.approx(0.01), "it had been idle"


def test_a_host_that_takes_longer_than_its_device_lowers_what_is_sustainable() -> None:
    costs = known()
    before = costs.sustainable_streams
    for _ in range(100):
        costs.observe_serving(2 * FRAME_SECONDS * costs.need(100), 500, 100)
    assert costs.slowdown == pytest.approx(2.0, rel=0.01)
    assert costs.sustainable_streams < before / 2
    for _ in range(100):
        costs.observe_serving(0.5 * FRAME_SECONDS * costs.need(100), 500, 100)
    assert costs.slowdown == 1.0, "a device that is quicker than predicted slows nobody down"


def test_the_budget_earns_the_time_that_streams_leave_and_keeps_little() -> None:
    for need, share in ((0.2, 0.792), (0.6, 0.184), (1.5, 0.05), (0.0, 0.95)):
        budget = Budget()
        budget.earn(0.001, need)
        assert budget.spare_s == pytest.approx(0.001 * share / (1 - share))
        assert budget.floor_s == pytest.approx(0.001 * LEAST_SHARE / (1 - LEAST_SHARE)), "whatever they need"
        budget.earn(1e6, need)
        assert budget.spare_s < 0.1
        budget.spend(1.0, others_waited=False)
        assert (budget.spare_s, budget.floor_s > 0) == (-MOST_DEBT_S, True), "nobody missed the time"
        budget.spend(1.0, others_waited=True)
        assert budget.floor_s == -MOST_FORCED_DEBT_S, "and not more is owed"


# ---- what comes next


def test_first_chunks_come_before_those_of_streams_that_are_late() -> None:
    late, new, decoded = stream(0, -1.0), stream(1), stream(2, frames=1)
    assert pick(view(late, new, decoded), NOW) == CodecLaunch([2], wait=True)
    assert pick(view(late, new), NOW) == DecodeLaunch([1])
    assert pick(view(late), NOW) == DecodeLaunch([0])
    assert pick(view(stream(0, 9.0, next_at=60.0)), NOW) == Rest(60.0)
    assert pick(view(), NOW) == Rest(math.inf)


def test_first_chunks_go_in_full_steps_of_which_the_last_is_waited_for() -> None:
    decoded = [stream(place, frames=1) for place in range(MOST_CODEC_STREAMS + 6)]
    assert pick(view(*decoded), NOW) == CodecLaunch(list(range(MOST_CODEC_STREAMS)), wait=False)
    assert pick(view(*decoded[:6]), NOW) == CodecLaunch(list(range(6)), wait=True)


def test_a_step_of_the_codec_is_bounded_in_streams_and_frames() -> None:
    full = [stream(place, 0.05 - place * 1e-4, frames=8, chunk_ready=True) for place in range(40)]
    launch = pick(view(*full), NOW)
    assert launch == CodecLaunch(list(range(39, 39 - MOST_CODEC_FRAMES // 8, -1))), "by deadline"
    assert pick(view(stream(0, 0.1, frames=500, chunk_ready=True)), NOW) == CodecLaunch([0]), "one at least"
    slow = known(speed=0.01)
    assert len(pick(view(*full, costs=slow), NOW)[0]) == 1
    assert [fitting([3, 3, 3], most) for most in (2, 3, 8, 9, 10)] == [0, 1, 2, 3, 3]


def test_a_batch_ends_before_the_first_stream_needs_the_device() -> None:
    """With a decode step for all, and audio for those before it."""
    playing = [stream(place, 0.07 + 0.001 * place) for place in range(100)]
    seen = view(*playing, waiting=1)
    launch_s, each_s = known().frames.predict(100), known().audio_each_s
    spare_s = 0.07 - launch_s - each_s - MARGIN_S
    rows = room(seen, NOW).rows
    assert known().prefill.predict(rows) == pytest.approx(spare_s)
    launch = pick(seen, NOW)
    assert isinstance(launch, PrefillLaunch)
    assert launch.rows == rows
    decoded = stream(101, 0.07, frames=100, chunk_ready=True)
    later_s = known().prefill.predict(room(view(*playing, decoded), NOW).rows)
    assert later_s < spare_s - 99 * each_s, "what was decoded is made audio first"
    assert room(view(*playing, stream(101, 0.02)), NOW).rows < 0, "wherever it stands"


def test_streams_that_need_nothing_soon_leave_the_time_to_others() -> None:
    for calm in (stream(0, 0.5, frames=100), stream(0, 0.5, next_at=NOW + SOON_S + 0.01)):
        assert room(view(calm), NOW).rows == math.inf, "it neither has a chunk nor takes a frame"
    assert room(view(stream(0, SOON_S - 0.01, frames=100)), NOW).rows < math.inf


def test_requests_begin_only_if_their_second_frame_comes_in_time() -> None:
    slow = known(speed=0.15)
    playing = [stream(place, 90.0) for place in range(3)]
    each_s, launch_s = slow.audio_each_s, slow.frames.predict(3)
    most = room(view(*playing, costs=slow), NOW).streams
    assert most == pytest.approx((FRAME_SECONDS - MARGIN_S - launch_s) / each_s)
    hungry = [stream(9, FRAME_SECONDS)]
    launch_s = slow.frames.predict(4)
    most = room(view(*playing, *hungry, costs=slow), NOW).streams
    assert most == pytest.approx((FRAME_SECONDS - MARGIN_S - launch_s) / each_s - 1)


def test_where_nothing_plays_all_begin_and_where_streams_are_far_ahead_a_batch_is_still_short() -> None:
    assert pick(view(waiting=9, balance_s=-1.0, costs=Costs()), NOW) == PrefillLaunch(math.inf, math.inf, 1.0)
    launch = pick(view(stream(0, 90.0), waiting=9), NOW)
    assert isinstance(launch, PrefillLaunch)
    assert known().prefill.predict(int(launch.rows)) <= LONG_PREFILL_S


def test_a_batch_that_the_budget_cannot_pay_for_waits_unless_the_device_is_idle() -> None:
    busy, resting = stream(0, 90.0), stream(0, 90.0, next_at=60.0)
    assert pick(view(busy, waiting=9, balance_s=-1.0), NOW) == DecodeLaunch([0])
    assert isinstance(pick(view(resting, waiting=9, balance_s=-1.0), NOW), PrefillLaunch)


def test_requests_get_their_least_share_though_playback_runs_dry() -> None:
    late = view(stream(0, -1.0), waiting=9)
    launch = pick(late, NOW)
    assert isinstance(launch, PrefillLaunch)
    assert launch.rows == 0, "there is no room for them"
    assert known().prefill.predict(int(launch.forced_rows)) <= FORCED_PREFILL_S
    assert pick(replace(late, budget=Budget(1.0, -0.01)), NOW) == DecodeLaunch([0]), "others have just begun"
    slow = pick(replace(late, costs=known(speed=0.01)), NOW)
    assert isinstance(slow, PrefillLaunch)
    assert slow.forced_rows == 1, "one at least"


def test_none_begins_beyond_what_can_be_sustained_but_one_always_may() -> None:
    most = int(known().sustainable_streams)
    assert 500 < most < 800
    resting = view(stream(0, 90.0, next_at=60.0), waiting=99, running=most)
    assert pick(resting, NOW) == Rest(60.0), "though the device has time"
    launch = pick(replace(resting, running=most - 3), NOW)
    assert isinstance(launch, PrefillLaunch)
    assert launch.streams == 3
    assert pick(view(waiting=999), NOW) == PrefillLaunch(math.inf, most, 1.0), "nor all at once"
    assert isinstance(pick(replace(resting, owed=True), NOW), PrefillLaunch), "an owner gets its share"
    assert known(speed=0.01).sustainable_streams == math.inf, "where not even one can, gaps cannot be helped"
    assert Costs().sustainable_streams == math.inf, "nothing is known"
    few = known()
    few.observe_serving(0.01, 50, 50)
    assert few.sustainable_streams == math.inf, "hundreds cannot be told from a few"


def test_an_owner_with_few_rows_and_a_backend_without_batches_wait_for_nobody() -> None:
    late = view(stream(0, -1.0), waiting=9, balance_s=-1.0)
    assert pick(replace(late, owed=True), NOW) == PrefillLaunch(math.inf)
    assert pick(replace(late, batched=False), NOW) == PrefillLaunch(math.inf)
    assert pick(replace(late, waiting=0, resuming=1), NOW) == PrefillLaunch(), "it holds a row already"


def test_audio_and_frames_come_by_deadline() -> None:
    decoded, hungry = stream(0, 0.5, frames=4, chunk_ready=True), stream(1, 0.02)
    assert pick(view(decoded, hungry), NOW) == DecodeLaunch([0, 1]), "the frame cannot wait for other audio"
    assert pick(view(decoded, stream(1, 0.5)), NOW) == CodecLaunch([0])
    urgent = stream(0, 0.01, frames=1)
    assert pick(view(urgent, hungry), NOW) == CodecLaunch([0]), "though it is no whole chunk"
    assert pick(view(stream(0, 0.5, frames=1), stream(1, 0.5)), NOW) == DecodeLaunch([0, 1]), "nor is it needed"


def test_a_backend_without_batches_gets_few_streams() -> None:
    playing = [stream(place, 1.0 + place) for place in range(5)]
    assert pick(view(*playing, batched=False), NOW) == DecodeLaunch(list(range(UNBATCHED_STREAMS)))
    assert pick(view(*playing, decode_limit=3), NOW) == DecodeLaunch([0, 1, 2])


def test_on_a_slow_device_each_owner_gets_as_much_as_the_one_with_fewest() -> None:
    slow, in_hand = known(speed=0.01), (3.0, 1.0, 2.0, 4.0)
    streams = [
        stream(place, seconds, owner=owner) for place, (owner, seconds) in enumerate(zip("aaab", in_hand, strict=True))
    ]

    def chosen(now: float) -> set[int]:
        launch = pick(view(*streams, costs=slow), now)
        assert isinstance(launch, DecodeLaunch)
        return set(launch.places)

    assert chosen(NOW + 4.0 - ENOUGH_S / 2) == {1, 3}, "the most urgent of the other owner"
    assert chosen(NOW + 4.0 - ENOUGH_S) == {0, 1, 2, 3}, "it has audio enough"


# ---- whatever the state


def any_view(random: Random) -> View:
    def some(place: int) -> Stream:
        opening, frames = random.random() < 0.1, random.choice([0, 0, 1, 2, 8])
        in_hand_s = math.inf if opening else random.uniform(-0.2, 3.0)
        next_at = NOW if random.random() < 0.7 or not frames else random.choice([NOW + 0.05, math.inf])
        ready = frames > 0 and (random.random() < 0.5 or next_at > NOW)
        owner = random.choice("ab")
        return stream(place, in_hand_s, frames=frames, chunk_ready=ready, next_at=next_at, owner=owner)

    streams = [some(place) for place in range(random.choice([0, 1, 8, 200]))]
    pace: Callable[[], Costs] = random.choice([Costs, known, lambda: known(speed=0.01)])
    return view(
        *streams,
        costs=pace(),
        balance_s=random.uniform(-0.1, 0.1),
        waiting=random.choice([0, 0, 1, 300]),
        owed=random.random() < 0.1,
        batched=random.random() < 0.8,
    )


def test_the_same_state_gives_the_same_launch_and_whatever_can_be_done_is_done() -> None:
    random = Random(3)
    for _ in range(300):
        seen = any_view(random)
        launch = pick(seen, NOW)
        assert pick(seen, NOW) == launch
        by_place = {one.place: one for one in seen.streams}
        match launch:
            case CodecLaunch(places, _):
                assert places
                assert all(by_place[place].frames for place in places)
            case DecodeLaunch(places):
                assert places
                assert all(by_place[place].next_at <= NOW for place in places)
            case PrefillLaunch(rows, streams, forced):
                assert seen.waiting
                assert max(min(rows, streams), forced) >= 1
            case Rest():
                assert not any(one.next_at <= NOW or one.chunk_ready for one in seen.streams)
                assert not seen.waiting
