"""The policy: what is launched next, for any state of the streams."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.costs import MOST_CODEC_FRAMES, MOST_SURPRISE, Budget, Cost, Costs
from megatalker.engine.scheduler import (
    ENOUGH_S,
    LONG_PREFILL_S,
    MARGIN_S,
    MOST_CODEC_STREAMS,
    PATIENCE_S,
    PREFILL_LAUNCHES,
    UNBATCHED_STREAMS,
    Batch,
    CodecStep,
    DecodeStep,
    Prefill,
    Stream,
    View,
    Wait,
    fitting,
    pick,
    slack_s,
)

NOW = 50.0


def line(fixed_s: float, each_s: float, *sizes: int) -> Cost:
    cost = Cost()
    for size in sizes:
        cost.observe(size, fixed_s + size * each_s)
    return cost


def known(*, prefill: Cost | None = None, speed: float = 1.0) -> Costs:
    """About an H200, or a device this many times as fast."""
    return Costs(
        prefill=prefill or line(0.008 / speed, 1.5e-5 / speed, 20, 2000),
        frames=line(0.004 / speed, 3e-5 / speed, 8, 400),
        audio=line(0.001 / speed, 6e-5 / speed, 8, 128),
    )


def stream(place: int, in_hand_s: float = math.inf, **facts: object) -> Stream:
    opening = in_hand_s == math.inf
    ready = opening and "frames" in facts
    plain = Stream(place, NOW + in_hand_s, NOW - 1, opening, frames=0, chunk_ready=ready, decodable=True)
    return plain._replace(**facts)


def view(*streams: Stream, costs: Costs | None = None, balance_s: float = 1.0, **facts: object) -> View:
    plain = View(streams, costs or known(), Budget(balance_s), running=len(streams))
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
        costs.observe_serving(2 * FRAME_SECONDS * costs.need(100), 100)
    assert costs.slowdown == pytest.approx(2.0)
    assert costs.sustainable_streams < before / 2
    for _ in range(100):
        costs.observe_serving(0.5 * FRAME_SECONDS * costs.need(100), 100)
    assert costs.slowdown == 1.0, "a device that is quicker than predicted slows nobody down"


def test_the_budget_earns_the_time_that_streams_leave_and_keeps_little() -> None:
    for need, share in ((0.2, 0.792), (0.6, 0.184), (1.5, 0.06), (0.0, 0.94)):
        budget = Budget()
        budget.earn(0.001, need)
        assert budget.balance_s == pytest.approx(0.001 * share / (1 - share))
        saved = budget
        saved.earn(1e6, need)
        assert saved.balance_s < 0.1
        saved.spend(1.0)
        assert saved.balance_s < 0


# ---- what comes next


def test_first_chunks_come_before_everything() -> None:
    late, new, decoded = stream(0, -1.0), stream(1), stream(2, frames=1)
    assert pick(view(late, new, decoded, waiting=9), NOW) == CodecStep([2], wait=True)
    assert pick(view(late, new, waiting=9), NOW) == DecodeStep([1])
    assert pick(view(late, waiting=0), NOW) == DecodeStep([0])
    assert pick(view(next_at=60.0), NOW) == Wait(60.0)


def test_first_chunks_go_in_full_steps_of_which_the_last_is_waited_for() -> None:
    decoded = [stream(place, frames=1) for place in range(MOST_CODEC_STREAMS + 6)]
    assert pick(view(*decoded), NOW) == CodecStep(list(range(MOST_CODEC_STREAMS)), wait=False)
    assert pick(view(*decoded[:6]), NOW) == CodecStep(list(range(6)), wait=True)


def test_a_step_of_the_codec_is_bounded_in_streams_and_frames() -> None:
    full = [stream(place, 0.05 - place * 1e-4, frames=8, chunk_ready=True) for place in range(40)]
    launch = pick(view(*full), NOW)
    assert launch == CodecStep(list(range(39, 39 - MOST_CODEC_FRAMES // 8, -1))), "by deadline"
    assert pick(view(stream(0, 0.1, frames=500, chunk_ready=True)), NOW) == CodecStep([0]), "one at least"
    slow = known(speed=0.01)
    assert len(pick(view(*full, costs=slow), NOW)[0]) == 1
    assert [fitting([3, 3, 3], most) for most in (2, 3, 8, 9, 10)] == [0, 1, 2, 3, 3]


def test_a_batch_ends_before_the_first_stream_needs_the_device() -> None:
    """With a decode step for all, and audio for those before it."""
    playing = [stream(place, 0.09 + 0.001 * place) for place in range(100)]
    seen = view(*playing, waiting=1)
    spare_s = slack_s(seen, NOW)
    assert spare_s < 0.09
    launch = pick(replace(seen, waiting=500), NOW)
    assert isinstance(launch, Prefill)
    assert known().prefill.predict(int(launch.rows)) <= min(spare_s - MARGIN_S, LONG_PREFILL_S)
    assert slack_s(view(*playing, stream(101, 0.02)), NOW) < 0.02, "wherever it stands"
    assert isinstance(pick(view(*playing, stream(101, 0.03), waiting=9), NOW), DecodeStep)


def test_where_nothing_plays_all_begin_and_where_streams_are_far_ahead_a_batch_is_still_short() -> None:
    assert pick(view(waiting=9, balance_s=-1.0, costs=Costs()), NOW) == Prefill(math.inf, math.inf)
    launch = pick(view(stream(0, 90.0), waiting=9), NOW)
    assert isinstance(launch, Prefill)
    assert known().prefill.predict(int(launch.rows)) <= LONG_PREFILL_S


def test_a_batch_that_the_budget_cannot_pay_for_waits_unless_the_device_is_idle() -> None:
    busy, resting = stream(0, 90.0), stream(0, 90.0, decodable=False)
    assert pick(view(busy, waiting=9, balance_s=-1.0), NOW) == DecodeStep([0])
    assert isinstance(pick(view(resting, waiting=9, balance_s=-1.0), NOW), Prefill)


def test_nobody_waits_for_ever() -> None:
    late = view(stream(0, -1.0), waiting=1, waiting_since=NOW - PATIENCE_S - 0.01, balance_s=-9.0)
    assert isinstance(pick(late, NOW), Prefill)
    assert pick(replace(late, last_batch_at=NOW - 0.1), NOW) == DecodeStep([0]), "others have just begun"


def test_none_begins_beyond_what_can_be_sustained_but_one_always_may() -> None:
    costs = known()
    most = int(costs.sustainable_streams)
    assert 500 < most < 800
    resting = [stream(0, 90.0, decodable=False)]
    patient = view(*resting, costs=costs, waiting=99, waiting_since=0.0, running=most)
    assert isinstance(pick(patient, NOW), Wait), "however long it has waited"
    launch = pick(replace(patient, running=most - 3), NOW)
    assert isinstance(launch, Prefill)
    assert launch.streams == 3
    assert isinstance(pick(replace(patient, running=0), NOW), Prefill)
    assert isinstance(pick(replace(patient, owed=True), NOW), Prefill), "an owner gets its share"
    assert known(speed=0.01).sustainable_streams == math.inf, "where not even one can, gaps cannot be helped"


def test_requests_that_arrive_join_the_batch_that_is_under_way() -> None:
    opening, batch = stream(0), Batch(NOW, beside=False, rows=20, launches=1)
    seen = view(opening, waiting=1, batch=batch, costs=Costs())
    assert isinstance(pick(seen, NOW), Prefill)
    for full in (replace(batch, launches=PREFILL_LAUNCHES), replace(batch, closed=True), replace(batch, began_at=0.0)):
        assert pick(replace(seen, batch=full), NOW) == DecodeStep([0])
    assert isinstance(pick(replace(seen, waiting=0, batch=replace(batch, launches=9, left_over=True)), NOW), Prefill)


def test_audio_and_frames_come_by_deadline() -> None:
    decoded, hungry = stream(0, 0.5, frames=4, chunk_ready=True), stream(1, 0.02)
    assert pick(view(decoded, hungry), NOW) == DecodeStep([0, 1]), "the frame cannot wait for other audio"
    assert pick(view(decoded, stream(1, 0.5)), NOW) == CodecStep([0])
    urgent = stream(0, 0.01, frames=1)
    assert pick(view(urgent, hungry), NOW) == CodecStep([0]), "though it is no whole chunk"
    assert pick(view(stream(0, 0.5, frames=1), stream(1, 0.5)), NOW) == DecodeStep([0, 1]), "nor is it needed"


def test_a_backend_without_batches_gets_few_streams() -> None:
    playing = [stream(place, 1.0 + place) for place in range(5)]
    assert pick(view(*playing, batched=False), NOW) == DecodeStep(list(range(UNBATCHED_STREAMS)))
    assert pick(view(*playing, decode_limit=3), NOW) == DecodeStep([0, 1, 2])
    assert isinstance(pick(view(*playing, batched=False, waiting=3), NOW), Prefill)


def test_on_a_slow_device_each_owner_gets_as_much_as_the_one_with_fewest() -> None:
    slow, in_hand = known(speed=0.01), (3.0, 1.0, 2.0, 4.0)
    streams = [
        stream(place, seconds, owner=owner) for place, (owner, seconds) in enumerate(zip("aaab", in_hand, strict=True))
    ]

    def chosen(now: float) -> set[int]:
        launch = pick(view(*streams, costs=slow), now)
        assert isinstance(launch, DecodeStep)
        return set(launch.places)

    assert chosen(NOW + 4.0 - ENOUGH_S / 2) == {1, 3}, "the most urgent of the other owner"
    assert chosen(NOW + 4.0 - ENOUGH_S) == {0, 1, 2, 3}, "it has audio enough"


# ---- whatever the state


def any_view(random: Random) -> View:
    def some(place: int) -> Stream:
        opening, frames = random.random() < 0.1, random.choice([0, 0, 1, 2, 8])
        in_hand_s = math.inf if opening else random.uniform(-0.2, 3.0)
        decodable = random.random() < 0.7 or not frames
        ready = frames > 0 and (random.random() < 0.5 or not decodable)
        owner = random.choice("ab")
        return stream(place, in_hand_s, frames=frames, chunk_ready=ready, decodable=decodable, owner=owner)

    streams = [some(place) for place in range(random.choice([0, 1, 8, 200]))]
    pace: Callable[[], Costs] = random.choice([Costs, known, lambda: known(speed=0.01)])
    return view(
        *streams,
        costs=pace(),
        balance_s=random.uniform(-0.1, 0.1),
        waiting=random.choice([0, 0, 1, 300]),
        waiting_since=NOW - random.uniform(0, 1),
        owed=random.random() < 0.1,
        batched=random.random() < 0.8,
        last_batch_at=NOW - random.uniform(0, 1),
        next_at=NOW + 1,
    )


def test_the_same_state_gives_the_same_launch_and_whatever_can_be_done_is_done() -> None:
    random = Random(3)
    for _ in range(300):
        seen = any_view(random)
        launch = pick(seen, NOW)
        assert pick(seen, NOW) == launch
        by_place = {one.place: one for one in seen.streams}
        match launch:
            case CodecStep(places, _):
                assert places
                assert all(by_place[place].frames for place in places)
            case DecodeStep(places):
                assert places
                assert all(by_place[place].decodable for place in places)
            case Prefill(rows, streams):
                assert seen.waiting or seen.owed
                assert min(rows, streams) >= 1
            case Wait():
                assert not any(one.decodable or one.chunk_ready for one in seen.streams)
                assert not seen.waiting or seen.running >= seen.costs.sustainable_streams
