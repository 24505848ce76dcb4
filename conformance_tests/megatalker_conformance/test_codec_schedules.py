"""Every state sounds like one full forward of the official decoder over its codes, after any sequence of calls."""

from megatalker_conformance.codec_harness import CodecHarness
from megatalker_conformance.codec_schedule import Action, Copy, DecodeCall, OpenCall, WarmUpCodec
from megatalker_conformance.promises import WARMUP

SCHEDULES = 5
CALLS = 55
"""Calls of each schedule; a call with many states or frames counts as several."""
DRAWN_WIDTH = 20
"""States of a call, at most, in random schedules."""
MANY, LONG_CALL = 14, 28
"""States, and frames of each, of a call that is both long and wide."""
WIDTH, ALIVE = 104, 132
"""States in one call of a codec without a limit, and states held meanwhile: more than the powers of two before them."""
LENGTHS = 33
"""Frames of a call: every number up to this, and with it every remainder of tiles of 32."""
WIDTHS = (*range(2, 18), 24, 31, 32, 33, 48, 63, 64, 65)
"""States of a call: all small numbers, and those at which tiles end."""


def test_any_schedule_equals_one_full_forward(codec_harness: CodecHarness) -> None:
    """Drawn at random.

    States of any ages in calls of any width and order, with equal and different numbers of frames, copies, states
    forgotten and others opened, integers of any type and stride, other threads.
    """
    width = min(codec_harness.width(DRAWN_WIDTH), DRAWN_WIDTH)
    codec_harness.hold_to(
        *(codec_harness.draw(f"random {number}", width).schedule(CALLS) for number in range(SCHEDULES))
    )


def test_as_many_states_as_it_takes_share_a_call(codec_harness: CodecHarness) -> None:
    """The same states again in the other order, and with different numbers of frames; fewer states of any age."""
    states = range(codec_harness.width(WIDTH))
    openings = codec_harness.pool.openings
    others = range(len(states), ALIVE)
    actions: list[Action] = [OpenCall(state, openings[state % len(openings)]) for state in (*states, *others)]
    actions.append(DecodeCall(tuple((state, 1) for state in states)))
    actions.append(DecodeCall(tuple((state, 1 + state % 2) for state in reversed(states))))
    actions.append(DecodeCall(tuple((state, 1) for state in others)))
    fewer = codec_harness.draw("widths", len(states)).of_widths([width for width in WIDTHS if width <= len(states)])
    codec_harness.hold_to(actions, fewer)


def test_copies_of_any_age_go_their_own_way(codec_harness: CodecHarness) -> None:
    """The original goes on as before, at times alone; a copy and the copy's own copy get other codes, in one call with
    it, before or after it, then alone.
    """
    original, actions, age = 1, list[Action]([OpenCall(1, 0)]), 0
    for number, (at, branch) in enumerate(codec_harness.pool.branches, start=1):
        copy, second = 2 * number, 2 * number + 1
        actions += [DecodeCall(((original, at - age),))] if at > age else []
        actions += [Copy(copy, original, branch), Copy(second, copy, branch)]
        first = ((copy, 1), (original, 1)) if number % 2 else ((original, 1), (copy, 1))
        actions += [DecodeCall(first), DecodeCall(((copy, 2),)), DecodeCall(((second, 2),))]
        age = max(at, age) + 1
        if number > 3 and number % 2 == 0:
            actions += [
                Copy(MANY * number, original, 0),
                DecodeCall(((original, 1),)),
                DecodeCall(((MANY * number, 1),)),
            ]
            age += 1
    codec_harness.hold_to(actions)


def test_long_calls_of_several_states_stay_exact(codec_harness: CodecHarness) -> None:
    """Calls of equal and different lengths, with states far apart in age, and with many states."""
    old, young, new, first, second = 1, 2, 3, *codec_harness.pool.trunks
    actions: list[Action] = [
        OpenCall(old, first),
        DecodeCall(((old, 105),)),
        OpenCall(young, second),
        DecodeCall(((young, 3),)),
    ]
    actions += [OpenCall(new, second), DecodeCall(((new, 70), (old, 70), (young, 122)))]
    actions += [DecodeCall(((old, 1), (young, 65), (new, 65)))]
    many = range(10, 10 + MANY)
    actions += [*(OpenCall(state, (first, second)[state % 2]) for state in many)]
    actions += [
        DecodeCall(tuple((state, LONG_CALL + state % 3) for state in many)),
        DecodeCall(tuple((state, 1) for state in many)),
    ]
    codec_harness.hold_to(actions)


def test_long_streams_stay_exact(codec_harness: CodecHarness) -> None:
    """Single frames at the start, where the window of the transformer fills up and far out; chunks of many sizes."""
    pool, state, copy, young = codec_harness.pool, 1, 2, 3
    assert float(pool.sequences[pool.long].samples.abs().max()) > 0, "silence would hide every difference"
    to_512 = [*[1] * 6, 59, *[1] * 16, 2, 3, 7, 140, 181, 98]
    far_out = [500, 1]
    actions: list[Action] = [OpenCall(state, pool.long), *(DecodeCall(((state, frames),)) for frames in to_512)]
    actions += [
        Copy(copy, state, pool.long),
        *(DecodeCall(((state, frames),)) for frames in far_out),
        OpenCall(young, 0),
    ]
    actions.append(DecodeCall(((copy, 3), (young, 5), (state, 87))))
    actions += [DecodeCall(((state, 390),)), DecodeCall(((state, 1),))]
    codec_harness.hold_to(actions)


def test_calls_of_every_length_stay_exact(codec_harness: CodecHarness) -> None:
    """One state takes calls that grow by a frame; longer ones, which cost more, are the first of other states."""
    pool, half = codec_harness.pool, LENGTHS * 2 // 3
    actions: list[Action] = [OpenCall(1, pool.long), *(DecodeCall(((1, frames),)) for frames in range(1, half + 1))]
    for frames in range(half + 1, LENGTHS + 1):
        actions += [
            OpenCall(frames, pool.trunks[frames % 2]),
            DecodeCall(((frames, 1),)),
            DecodeCall(((frames, frames),)),
        ]
    codec_harness.hold_to(actions)


def test_codes_that_repeat_sound_as_officially(codec_harness: CodecHarness) -> None:
    """Zeros, one frame again and again, and two frames by turns, in short and long calls, together and alone."""
    states = tuple(enumerate(codec_harness.pool.repeating))
    actions: list[Action] = [OpenCall(state, sequence) for state, sequence in states]
    for frames in (1, 1, 2, 7):
        actions.append(DecodeCall(tuple((state, frames) for state, _ in states)))
    actions += [DecodeCall(((state, 69),)) for state, _ in states]
    codec_harness.hold_to(actions)


def test_a_codec_is_exact_before_and_after_its_warmup(codec_harness: CodecHarness) -> None:
    """Uses a new instance of the codec, with states from before its warm-up."""
    states = range(1, 1 + min(codec_harness.width(3), 3))
    first, then = (DecodeCall(tuple((state, frames + state) for state in states)) for frames in (1, 2))
    cold = codec_harness.load()
    codec_harness.hold_to(
        [*(OpenCall(state, state) for state in states), first, WarmUpCodec(), then], promise=WARMUP, codec=cold
    )
    cold.close()
