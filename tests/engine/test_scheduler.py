"""The scheduler: costs of launches, the budget, and the launch that is picked for any state of the streams."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from known_costs import known, line, needing
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.costs import (
    MOST_CODEC_FRAMES,
    MOST_PREFILL_S,
    NEARLY_FULL,
    UNBATCHED_STREAMS,
    Budget,
    Costs,
)
from megatalker.engine.scheduler import (
    ENOUGH_S,
    FORCED_PREFILL_S,
    FULL_MARGIN_S,
    LONG_PREFILL_S,
    MARGIN_S,
    MOST_CODEC_STREAMS,
    SOON_S,
    CodecLaunch,
    DecodeLaunch,
    PrefillLaunch,
    Rest,
    Stream,
    StreamStatus,
    View,
    fitting,
    pick,
    room,
)

NOW = 50.0
AUDIO_S = 0.001, 6e-5
"""Seconds of a codec step, and of each of its frames."""


def stream(in_hand_s: float = -math.inf, **facts: Any) -> Stream:
    """Return a stream that is ready for its next frame, unless ``facts`` say otherwise."""
    plain = {"status": StreamStatus.RUNNING, "admitted": True, "deadline": NOW + in_hand_s, "decode_at": -math.inf}
    return Stream(**(plain | facts))


def decoded(in_hand_s: float, frames: int, **facts: Any) -> Stream:
    """Return a stream with a whole chunk of frames, which needs no further frame soon."""
    plain = {"ungiven": frames, "chunk_frames": frames, "decode_at": math.inf}
    return stream(in_hand_s, **(plain | facts))


def view(*streams: Stream, costs: Costs | None = None, balance_s: float = 1.0, **facts: Any) -> View[Stream]:
    budget = Budget(balance_s, balance_s)
    plain = View(streams, costs or known(), budget, held=len(streams), running=len(streams))
    return replace(plain, **facts)


# ---- the next launch


def test_first_chunks_come_before_the_frames_of_streams_that_are_late() -> None:
    late, new, first = stream(-1.0), stream(), decoded(-math.inf, 1)
    assert pick(view(late, new, first), NOW) == CodecLaunch([first], wait=True)
    assert pick(view(late, new), NOW) == DecodeLaunch([new])
    assert pick(view(late), NOW) == DecodeLaunch([late])
    assert pick(view(stream(9.0, decode_at=60.0)), NOW) == Rest(60.0)
    assert pick(view(), NOW) == Rest(math.inf)


def test_first_chunks_go_in_full_steps_of_which_the_last_is_waited_for() -> None:
    first = [decoded(-math.inf, 1) for _ in range(MOST_CODEC_STREAMS + 6)]
    assert pick(view(*first), NOW) == CodecLaunch(first[:MOST_CODEC_STREAMS], wait=False)
    assert pick(view(*first[:6]), NOW) == CodecLaunch(first[:6], wait=True)


def test_a_codec_step_is_bounded_in_streams_and_frames() -> None:
    full = [decoded(0.05 - place * 1e-4, 8) for place in range(40)]
    assert pick(view(*full), NOW) == CodecLaunch(full[::-1][: MOST_CODEC_FRAMES // 8]), "by deadline"
    long = decoded(0.1, 500)
    assert pick(view(long), NOW) == CodecLaunch([long]), "one at least"
    assert pick(view(*full, costs=known(speed=0.01)), NOW) == CodecLaunch(full[-1:])
    assert pick(view(*full, codec_limit=3), NOW) == CodecLaunch(full[:-4:-1])
    assert [fitting([3, 3, 3], most) for most in (2, 3, 8, 9, 10)] == [0, 1, 2, 3, 3]


def test_a_prefill_batch_ends_before_the_first_stream_needs_the_device() -> None:
    """A decode step for all streams, and the audio of those with earlier deadlines, come in between."""
    playing = [stream(0.07 + 0.001 * place) for place in range(100)]
    costs = known(prefill=line(0.0, 1.5e-5, 20, 2000))
    seen = view(*playing, waiting=1, costs=costs)
    launch_s, each_s = costs.decode_s(100), costs.audio_each_s
    spare_s = 0.07 - launch_s - each_s - MARGIN_S
    assert costs.need(100) < NEARLY_FULL
    rows = room(seen, NOW).rows
    assert costs.prefill.predict(rows) == pytest.approx(spare_s)
    launch = pick(seen, NOW)
    assert isinstance(launch, PrefillLaunch)
    assert (launch.rows, launch.forced) == (rows, False)
    with_audio = view(*playing, decoded(0.07, 100), costs=costs)
    later_s = costs.prefill.predict(room(with_audio, NOW).rows)
    assert later_s < spare_s - 99 * each_s, "what was decoded is made audio first"
    assert room(view(*playing, stream(0.02)), NOW).rows < 0, "wherever it stands"
    own_s = 0.1 - 100 * each_s - MARGIN_S
    alone = room(view(stream(90.0), decoded(0.1, 100), costs=costs), NOW)
    assert costs.prefill.predict(alone.rows) == pytest.approx(min(own_s, LONG_PREFILL_S)), "its own audio is needed"
    assert room(view(stream(90.0), decoded(0.02, 1), costs=costs), NOW).rows < 0


def test_streams_that_need_nothing_soon_leave_the_time_to_others() -> None:
    some_frames = {"ungiven": 100, "chunk_frames": 200}
    for calm in (stream(0.5, **some_frames), stream(0.5, decode_at=NOW + MARGIN_S + SOON_S + 0.01)):
        assert room(view(calm), NOW).rows == math.inf, "it neither has a chunk nor takes a frame"
    assert room(view(stream(SOON_S - 0.01, **some_frames)), NOW).rows < math.inf


def test_requests_begin_only_if_their_second_frame_comes_in_time() -> None:
    slow = known(speed=0.15)
    playing = [stream(90.0) for _ in range(3)]
    each_s = slow.audio_each_s
    most = room(view(*playing, costs=slow), NOW).streams
    assert most == pytest.approx((FRAME_SECONDS - MARGIN_S - slow.decode_s(3)) / each_s)
    most = room(view(*playing, stream(FRAME_SECONDS - 0.001), costs=slow), NOW).streams
    assert most == pytest.approx((FRAME_SECONDS - MARGIN_S - slow.decode_s(4)) / each_s - 1)
    most = room(view(*playing, decoded(90.0, 8), costs=slow), NOW).streams
    assert most == pytest.approx((FRAME_SECONDS - MARGIN_S - slow.decode_s(4)) / each_s - 8)


def test_while_nothing_plays_all_begin() -> None:
    assert pick(view(waiting=9, balance_s=-1.0, costs=Costs()), NOW) == PrefillLaunch(math.inf, math.inf)


def test_while_streams_are_far_ahead_a_prefill_batch_is_still_short() -> None:
    launch = pick(view(stream(90.0), waiting=9), NOW)
    assert isinstance(launch, PrefillLaunch)
    assert known().prefill.predict(int(launch.rows)) <= LONG_PREFILL_S


def test_one_request_may_take_longer_where_streams_can_wait() -> None:
    costs = known()
    rows = 2 * int(costs.prefill.size_within(LONG_PREFILL_S))
    long_s = costs.prefill.predict(rows)
    assert LONG_PREFILL_S < long_s < MOST_PREFILL_S
    launch = pick(view(stream(90.0), waiting=1, next_rows=rows), NOW)
    assert isinstance(launch, PrefillLaunch)
    assert launch.rows == rows
    near = stream(long_s + MARGIN_S)
    assert room(view(near, waiting=1, next_rows=rows), NOW).rows < rows


def test_a_prefill_batch_that_the_budget_cannot_pay_for_waits_unless_the_device_is_idle() -> None:
    busy, resting = stream(90.0), stream(90.0, decode_at=60.0)
    assert pick(view(busy, waiting=9, balance_s=-1.0), NOW) == DecodeLaunch([busy])
    assert isinstance(pick(view(resting, waiting=9, balance_s=-1.0), NOW), PrefillLaunch)


def test_a_prefill_batch_for_which_there_is_room_is_paid_by_what_streams_leave() -> None:
    """The floor of the budget forces a batch only where there is no room for it."""
    busy = stream(90.0)
    floor_only = view(busy, waiting=9, budget=Budget(-1.0, 1.0))
    assert pick(floor_only, NOW) == DecodeLaunch([busy])
    assert isinstance(pick(replace(floor_only, budget=Budget(1.0, -1.0)), NOW), PrefillLaunch)


def test_requests_get_their_least_share_though_playback_runs_dry() -> None:
    late = stream(-1.0)
    seen = view(late, waiting=9)
    launch = pick(seen, NOW)
    assert isinstance(launch, PrefillLaunch)
    assert launch.forced, "there is no room for them"
    assert launch.rows == known().prefill.size_within(FORCED_PREFILL_S)
    assert pick(replace(seen, budget=Budget(1.0, -0.01)), NOW) == DecodeLaunch([late]), "others have just begun"
    assert isinstance(pick(replace(seen, budget=Budget(-1.0, 0.01)), NOW), PrefillLaunch)


NEARLY_FULL_STREAMS = 500


@pytest.mark.parametrize("full", [False, True])
def test_on_a_nearly_full_engine_requests_begin_only_if_playing_streams_get_further_ahead(full: bool) -> None:
    costs = needing(NEARLY_FULL * (1.01 if full else 0.99), NEARLY_FULL_STREAMS)
    assert costs.sustainable_streams > NEARLY_FULL_STREAMS
    round_s = costs.decode_s(1) + costs.audio_each_s
    margin_s = FULL_MARGIN_S if full else MARGIN_S
    seen = view(waiting=9, costs=costs, held=NEARLY_FULL_STREAMS, running=NEARLY_FULL_STREAMS)

    def begin(in_hand_s: float) -> bool:
        launch = pick(replace(seen, streams=[stream(in_hand_s, decode_at=NOW)]), NOW)
        return isinstance(launch, PrefillLaunch) and not launch.forced

    assert begin(margin_s + round_s + costs.prefill.predict(1) + 0.001)
    assert not begin(margin_s + round_s - 0.001)


def test_on_a_nearly_full_engine_no_batch_is_forced() -> None:
    late, costs = stream(-1.0), needing(1.01 * NEARLY_FULL, NEARLY_FULL_STREAMS)
    seen = view(late, waiting=9, costs=costs, held=NEARLY_FULL_STREAMS, running=NEARLY_FULL_STREAMS)
    assert pick(seen, NOW) == DecodeLaunch([late])
    launch = pick(replace(seen, costs=needing(0.99 * NEARLY_FULL, NEARLY_FULL_STREAMS)), NOW)
    assert isinstance(launch, PrefillLaunch)
    assert launch.forced


def test_none_begins_beyond_what_can_be_sustained_but_one_always_may() -> None:
    most = int(known().sustainable_streams)
    resting = view(stream(90.0, decode_at=60.0), waiting=99, running=most)
    assert pick(resting, NOW) == Rest(60.0), "though the device has time"
    for left, begin in ((40, 20), (1, 1)):
        launch = pick(replace(resting, running=most - left), NOW)
        assert isinstance(launch, PrefillLaunch)
        assert launch.streams == begin, "half of the room that is left"
    assert pick(view(waiting=999), NOW) == PrefillLaunch(known().most_rows, most / 2), "nor all at once"
    assert isinstance(pick(replace(resting, owed=True), NOW), PrefillLaunch), "an owner gets its share"
    slow = pick(view(waiting=9, costs=known(speed=0.01)), NOW)
    assert isinstance(slow, PrefillLaunch)
    assert slow.streams == 1


def test_an_owner_with_few_slots_and_a_backend_without_batches_wait_for_no_other_stream() -> None:
    late, most = view(stream(-1.0), waiting=9, balance_s=-1.0), known().most_rows
    left = known().sustainable_streams - 1
    assert pick(replace(late, owed=True), NOW) == PrefillLaunch(most, left, owed=True)
    assert pick(replace(late, batched=False), NOW) == PrefillLaunch(most, left, owed=True)


@pytest.mark.parametrize("waiting", [0, 9])
def test_a_stream_that_lost_its_place_goes_on_by_deadline_whatever_requests_wait_for(waiting: int) -> None:
    def beside(*others: Stream, in_hand_s: float) -> object:
        lost = stream(in_hand_s, status=StreamStatus.WAITING, decode_at=math.inf)
        return pick(view(*others, lost, waiting=waiting, balance_s=-1.0, resuming=1), NOW)

    rows = known().prefill.size_within(FORCED_PREFILL_S)
    playing = stream(-1.0)
    assert beside(playing, in_hand_s=-1.1) == PrefillLaunch(rows, 0)
    assert beside(playing, decoded(-1.2, 4), in_hand_s=-1.1) != PrefillLaunch(rows, 0)
    assert beside(playing, in_hand_s=-0.9) == DecodeLaunch([playing])
    ended = decoded(-2.0, 0, status=StreamStatus.ENDED, ungiven=0)
    assert beside(playing, ended, in_hand_s=-1.1) == PrefillLaunch(rows, 0), "it needs nothing"
    assert beside(stream(9.0, decode_at=NOW + 5), in_hand_s=1.0) == PrefillLaunch(rows, 0)
    idle = beside(stream(0.5, decode_at=NOW + 5), in_hand_s=1.0)
    assert isinstance(idle, PrefillLaunch)
    assert idle.rows == known().most_rows


def test_audio_and_frames_come_by_deadline() -> None:
    chunk, hungry = decoded(0.5, 4, decode_at=-math.inf), stream(0.02)
    assert pick(view(chunk, hungry), NOW) == DecodeLaunch([chunk, hungry]), "the frame cannot wait for other audio"
    assert pick(view(chunk, stream(0.5)), NOW) == CodecLaunch([chunk])
    urgent = stream(0.01, ungiven=1, chunk_frames=2)
    assert pick(view(urgent, hungry), NOW) == CodecLaunch([urgent]), "though it is no whole chunk"
    calm = [stream(0.5, ungiven=1, chunk_frames=2), stream(0.5)]
    assert pick(view(*calm), NOW) == DecodeLaunch(calm), "nor is it needed"


@pytest.mark.parametrize(("need", "hurried"), [(0.5, True), (0.99, True), (1.01, False)])
def test_audio_is_hurried_unless_the_engine_is_slower_than_playback(need: float, hurried: bool) -> None:
    """Smaller chunks cost more, so that an overloaded engine would become slower still."""
    urgent, others = stream(0.01, ungiven=1, chunk_frames=8), [stream(1.0) for _ in range(9)]
    seen = view(urgent, *others, costs=needing(need, 10))
    launch = pick(seen, NOW)
    assert launch == CodecLaunch([urgent]) if hurried else isinstance(launch, DecodeLaunch)
    whole = stream(0.01, ungiven=8, chunk_frames=8)
    assert pick(replace(seen, streams=[whole, *others]), NOW) == CodecLaunch([whole]), "a whole chunk is made anyway"


def test_a_backend_without_batches_gets_the_streams_with_the_earliest_deadlines() -> None:
    playing = [stream(0.5 - 0.1 * place) for place in range(5)]
    costs = known()
    costs.most_decoded = UNBATCHED_STREAMS
    assert pick(view(*playing, costs=costs, batched=False), NOW) == DecodeLaunch(playing[:-3:-1])
    costs.most_decoded = 3
    assert pick(view(*playing, costs=costs), NOW) == DecodeLaunch(playing[:-4:-1])


def test_on_a_slow_device_each_owner_gets_as_much_as_the_one_with_fewest() -> None:
    slow, in_hand = known(speed=0.01), (3.0, 1.0, 2.0, 4.0)
    streams = [stream(seconds, owner=owner) for owner, seconds in zip("aaab", in_hand, strict=True)]

    def chosen(now: float) -> set[int]:
        launch = pick(view(*streams, costs=slow), now)
        assert isinstance(launch, DecodeLaunch)
        return {streams.index(one) for one in launch.streams}

    assert chosen(NOW + 4.0 - ENOUGH_S / 2) == {1, 3}, "the most urgent of the other owner"
    assert chosen(NOW + 4.0 - ENOUGH_S) == {0, 1, 2}, "it has audio enough"


# ---- any state


def any_stream(random: Random) -> Stream:
    status = random.choice([StreamStatus.RUNNING] * 6 + list(StreamStatus))
    frames = random.choice([0, 0, 1, 2, 8])
    chunk = random.choice([1, 2, 8]) if status is StreamStatus.RUNNING else 1
    decode_at = math.inf
    if status is StreamStatus.RUNNING:
        decode_at = -math.inf if frames < chunk and random.random() < 0.7 else NOW + random.uniform(-0.1, 0.2)
        if frames >= chunk:
            decode_at = math.inf
    return Stream(
        status=status,
        owner=random.choice("ab"),
        admitted=status is not StreamStatus.WAITING or random.random() < 0.1,
        deadline=-math.inf if random.random() < 0.1 else NOW + random.uniform(-0.2, 3.0),
        ungiven=frames,
        chunk_frames=chunk,
        decode_at=decode_at,
    )


def any_view(random: Random) -> View[Stream]:
    streams = [any_stream(random) for _ in range(random.choice([0, 1, 8, 200]))]
    pace: Callable[[], Costs] = random.choice([Costs, known, lambda: known(speed=0.01), lambda: known(speed=0.3)])
    return view(
        *streams,
        costs=pace(),
        balance_s=random.uniform(-0.1, 0.1),
        waiting=random.choice([0, 0, 1, 300]),
        resuming=random.choice([0, 0, 0, 2]),
        next_rows=random.choice([1, 30, 4000]),
        held=sum(one.admitted for one in streams),
        running=sum(one.decode_at != math.inf for one in streams),
        owed=random.random() < 0.1,
        batched=random.random() < 0.8,
        codec_limit=random.choice([math.inf, 2]),
    )


def test_the_same_state_gives_the_same_launch_and_whatever_can_be_done_is_done() -> None:
    random = Random(3)
    kinds: set[type] = set()
    for _ in range(1000):
        seen = any_view(random)
        before = [replace(one) for one in seen.streams], replace(seen.budget)
        launch = pick(seen, NOW)
        assert pick(seen, NOW) == launch
        facts = [[getattr(one, name) for name in Stream.__slots__] for one in seen.streams]
        assert facts == [[getattr(one, name) for name in Stream.__slots__] for one in before[0]], "nothing changed"
        assert seen.budget == before[1]
        kinds.add(type(launch))
        ready = [one for one in seen.streams if one.decode_at <= NOW]
        chunks = [one for one in seen.streams if one.ungiven >= max(1, one.chunk_frames)]
        match launch:
            case CodecLaunch(streams, _):
                assert streams
                assert len(set(map(id, streams))) == len(streams) <= seen.codec_limit
                assert all(one.ungiven for one in streams)
            case DecodeLaunch(streams):
                assert streams
                assert all(one.decode_at <= NOW for one in streams)
            case PrefillLaunch(rows, streams, forced):
                assert seen.waiting or seen.resuming
                assert rows >= 1 or forced, "one request goes at least"
                assert streams >= 1 or seen.resuming or seen.owed or not seen.batched
            case Rest(until):
                assert not ready
                assert not chunks
                assert not seen.resuming
                assert not seen.waiting or seen.running >= seen.costs.sustainable_streams - 1
                assert until == min((one.decode_at for one in seen.streams if one.decode_at > NOW), default=math.inf)
    assert kinds == {CodecLaunch, DecodeLaunch, PrefillLaunch, Rest}
