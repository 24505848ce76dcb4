"""The order of launches: waiting prompts together, their first frames and first audio alone, then by deadline."""

import time
from dataclasses import replace
from itertools import chain, pairwise, takewhile
from math import inf

import pytest

from engine_stage import TEXT, EngineClock, Opener
from fake_backend import CAPABILITIES, CODEC_CAPABILITIES, Behaviour, Fakes, FakeTalker
from launches import Launches, arrive_once, begin, hear
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine import Engine, SpeechStream
from megatalker.engine.admission import Grant
from megatalker.engine.costs import MOST_PREFILL_S, Budget, Cost, Costs
from megatalker.engine.dispatcher import PREFILL_LAUNCHES, Dispatcher
from megatalker.engine.scheduler import PrefillLaunch, Room
from megatalker.engine.speech.chunks import ChunkPolicy
from megatalker.engine.waiting import MOST_LAUNCH_ROWS, WaitingRequests
from megatalker.interfaces import Limit
from waiting import eventually, stands_still

WIDE = replace(CAPABILITIES, max_streams=Limit.NONE)


def test_all_waiting_requests_begin_together_and_have_audio_after_three_launches(
    open_engine: Opener, launches: Launches
) -> None:
    engine = open_engine(Fakes(talkers={"fake": Behaviour(capabilities=WIDE)}), max_streams=12)
    hear(*begin(engine, 12))
    everybody = list(range(1, 13))
    assert launches.events[:3] == [("prompts", everybody), ("frames", everybody), ("audio", [1] * 12)]


def test_prompts_of_many_are_launched_one_part_after_the_other_before_their_first_frame(
    open_engine: Opener, launches: Launches
) -> None:
    """The next part is built while the device computes the one before."""
    engine = open_engine(Fakes(talkers={"fake": Behaviour(capabilities=WIDE)}), max_streams=100)
    hear(*begin(engine, 100))
    rows = len(engine_talker(engine).prefills[0].embeds)
    parts = [streams for _, streams in takewhile(lambda event: event[0] == "prompts", launches.events)]
    assert list(chain.from_iterable(parts)) == list(range(1, 101))
    assert len(parts) > PREFILL_LAUNCHES, "more than for requests that arrive meanwhile"
    assert {len(part) for part in parts[:-1]} == {MOST_LAUNCH_ROWS // rows}
    assert launches.events[len(parts)] == ("frames", list(range(1, 101)))


def test_prompts_that_take_a_device_long_do_not_keep_those_before_from_their_first_frame(
    open_engine: Opener, launches: Launches, engine_clock: EngineClock
) -> None:
    engine = open_engine(Fakes(talkers={"fake": Behaviour(capabilities=WIDE)}), max_streams=60)

    def take_long(index: int) -> None:
        engine_clock.passed_s += MOST_PREFILL_S * (launches.events[index][0] == "prompts")

    launches.on_launch = take_long
    hear(*begin(engine, 60))
    assert [kind for kind, _ in launches.events[:3]] == ["prompts", "frames", "audio"]


def test_a_prompt_longer_than_a_launch_is_one_by_itself(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatalker.engine.waiting.MOST_LAUNCH_ROWS", 1)
    hear(*begin(open_engine(), 2))
    assert launches.events[:3] == [("prompts", [1]), ("prompts", [2]), ("frames", [1, 2])]


def test_the_first_frame_and_audio_of_a_new_request_are_alone_and_next(open_engine: Opener, launches: Launches) -> None:
    engine = open_engine()
    arrived = arrive_once(launches, engine, lambda events: sum(kind == "frames" for kind, _ in events) == 12)
    hear(*begin(engine, 3))
    hear(*arrived)
    index = launches.arrived_at
    assert launches.events[index] == ("frames", [1, 2, 3])
    assert launches.after(index, 3) == [("prompts", [4]), ("frames", [4]), ("audio", [1])]


def test_arrivals_are_looked_at_between_the_steps_of_the_codec(open_engine: Opener, launches: Launches) -> None:
    talkers = {"fake": Behaviour()}
    codecs = {"noise": Behaviour(codec_capabilities=replace(CODEC_CAPABILITIES, max_streams=2))}
    engine = open_engine(Fakes(talkers, codecs), max_chunk_frames=1)
    arrived = arrive_once(launches, engine, lambda events: len(events) > 8 and events[-2][0] == "frames")
    hear(*begin(engine, 6))
    hear(*arrived)
    index = launches.arrived_at
    assert launches.events[index] == ("audio", [1, 1]), "one of three steps"
    assert launches.after(index, 3) == [("prompts", [7]), ("frames", [7]), ("audio", [1])]
    assert launches.after(index, 5)[3:] == [("audio", [1, 1])] * 2, "then what was due, before more frames"


def test_prompts_that_are_together_too_long_go_in_several_batches(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_engine()
    hear(*begin(first, 1))
    rows = len(engine_talker(first).prefills[0].embeds)
    launches.events.clear()
    monkeypatch.setattr(Costs, "most_rows", 2 * rows)
    hear(*begin(open_engine(), 5))
    batches = [index for index, (kind, _) in enumerate(launches.events) if kind == "prompts"]
    assert [launches.events[index][1] for index in batches] == [[1, 2], [3, 4], [5]]
    for index in batches:
        streams = launches.events[index][1]
        assert launches.after(index, 2) == [("frames", streams), ("audio", [1] * len(streams))]
    assert batches[1] > 3, "streams that have begun were served in between"


def test_requests_and_streams_that_would_run_dry_alternate(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(max_chunk_frames=1)
    arrived: list[SpeechStream] = []

    def arrive(index: int) -> None:
        if launches.events[index] == ("frames", [1]) and not arrived:
            launches.arrived_at = index
            monkeypatch.setattr(Cost, "size_within", lambda cost, seconds: 0.0)
            arrived.extend(engine.speak(TEXT, seed=seed) for seed in range(3))

    launches.on_launch = arrive
    hear(*begin(engine, 1))
    hear(*arrived)
    kinds = [event for event in launches.events[launches.arrived_at :] if event[0] == "prompts" or event[1] == [1]]
    begun = [index for index, (kind, _) in enumerate(kinds) if kind == "prompts"]
    assert [kinds[index][1] for index in begun] == [[2], [3], [4]], "one at a time"
    assert all(later - earlier > 1 for earlier, later in pairwise(begun)), "with a launch for others in between"


def test_a_forced_prefill_batch_begins_one_request_though_it_takes_long(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams that hold little audio in hand never leave room for a slow prefill."""
    monkeypatch.setattr("megatalker.engine.scheduler.room", lambda view, now, lost_s: Room(-12.0, inf))
    monkeypatch.setattr(Cost, "size_within", lambda cost, seconds: -12.0)
    monkeypatch.setattr(Budget, "spend", lambda budget, seconds, *, others_waited: None)
    engine = open_engine(max_chunk_frames=1)
    arrived = arrive_once(launches, engine, lambda events: len(events) == 5)
    hear(*begin(engine, 1))
    hear(*arrived)
    later = launches.events[launches.arrived_at :]
    rest = later[later.index(("prompts", [2])) :]
    assert any(kind == "frames" and 1 in what for kind, what in rest), "the first is still playing"


def test_prefill_batches_while_streams_play_are_paid_for(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether there was room for them or not."""
    waited: list[bool] = []
    monkeypatch.setattr(Dispatcher, "is_warm", True)
    monkeypatch.setattr(Budget, "spend", lambda budget, seconds, *, others_waited: waited.append(others_waited))
    engine = open_engine(max_chunk_frames=1)
    second: list[SpeechStream] = []

    def arrive(index: int) -> None:
        if launches.events[index][0] == "frames" and index > 3 and not second:
            second.append(engine.speak_for("second", TEXT, seed=2))

    launches.on_launch = arrive
    hear(*begin(engine, 1))
    hear(*second)
    assert waited == [False, True]


def test_while_no_request_may_begin_it_is_not_asked_which_would(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hundreds that wait the answer takes longer than a launch."""
    asked: list[int] = []
    choose = WaitingRequests.next_launch

    def ask(waiting: WaitingRequests, what: PrefillLaunch, now: float, begun: int = 0, rows: int = 0) -> list[Grant]:
        asked.extend([len(launches.events)] * (not begun))
        return choose(waiting, what, now, begun, rows)

    monkeypatch.setattr(WaitingRequests, "next_launch", ask)
    monkeypatch.setattr(Budget, "earn", lambda budget, seconds, need: None)
    engine = open_engine()
    second: list[SpeechStream] = []

    def arrive(index: int) -> None:
        if index == 4:
            second.append(engine.speak(TEXT, seed=2))

    launches.on_launch = arrive
    hear(*begin(engine, 1))
    hear(*second)
    assert len(asked) == 2, "when each of them began"
    assert asked[1] > 8, "the first was over, or far ahead"


@pytest.mark.parametrize("late", [True, False])
def test_an_owner_with_few_rows_does_not_wait_for_those_of_one_with_many(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Neither for their playback, nor for their own waiting requests."""
    rows = 0.0 if late else inf
    monkeypatch.setattr("megatalker.engine.scheduler.room", lambda view, now, lost_s: Room(rows, inf))
    monkeypatch.setattr(Budget, "earn", lambda budget, seconds, need: None)
    engine = open_engine()
    arrived: list[SpeechStream] = []

    def arrive(index: int) -> None:
        if launches.events[index] == ("frames", [1, 2, 3]) and index > 4 and not arrived:
            launches.arrived_at = index
            arrived.append(engine.speak_for("many", TEXT, seed=3))
            arrived.append(engine.speak_for("few", TEXT, seed=4))

    launches.on_launch = arrive
    with engine.borrow_backends():
        first = [engine.speak_for("many", TEXT, seed=seed) for seed in range(3)]
    hear(*first)
    hear(*arrived)
    assert launches.after(launches.arrived_at, 3) == [("prompts", [4]), ("frames", [4]), ("audio", [1])]
    assert engine_talker(engine).prefills[3].sampling.seed == 4, "alone, and before the earlier request"


def test_the_audio_of_more_streams_than_a_codec_step_takes_is_made_in_several_steps(
    open_engine: Opener, launches: Launches
) -> None:
    engine = open_engine(Fakes(talkers={"fake": Behaviour(capabilities=WIDE, frames=3)}), max_streams=70, max_waiting=0)
    hear(*begin(engine, 70))
    steps = [what for kind, what in launches.events if kind == "audio"]
    assert steps[:2] == [[1] * 64, [1] * 6]
    assert max(map(len, steps)) == 64


def test_steps_of_a_slow_codec_are_small(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cost, "size_within", lambda cost, seconds: 2.5)
    hear(*begin(open_engine(), 6))
    assert max(sum(what) for kind, what in launches.events if kind == "audio") == 2


def test_requests_that_arrive_while_prompts_are_launched_get_their_first_frame_with_them(
    open_engine: Opener, launches: Launches
) -> None:
    engine = open_engine()
    arrived = arrive_once(launches, engine, lambda events: events[-1][0] == "prompts")
    hear(*begin(engine, 2))
    hear(*arrived)
    assert launches.events[:4] == [("prompts", [1, 2]), ("prompts", [3]), ("frames", [1, 2, 3]), ("audio", [1, 1, 1])]


def test_a_first_frame_is_not_put_off_for_ever_by_requests_that_arrive(open_engine: Opener, launches: Launches) -> None:
    engine = open_engine()
    arrived: list[SpeechStream] = []

    def arrive(index: int) -> None:
        if launches.events[index][0] == "prompts" and len(arrived) < 9:
            arrived.append(engine.speak(TEXT, seed=50 + len(arrived)))

    launches.on_launch = arrive
    hear(*begin(engine, 1))
    hear(*arrived)
    assert [kind for kind, _ in launches.events[:5]] == ["prompts"] * PREFILL_LAUNCHES + ["frames", "audio"]


def test_a_backend_that_takes_streams_one_after_another_speaks_before_it_reads_the_next_prompt(
    open_engine: Opener, launches: Launches
) -> None:
    alone = Behaviour(capabilities=replace(CAPABILITIES, batch=False))
    engine = open_engine(Fakes(talkers={"fake": alone}))
    hear(*begin(engine, 2))
    assert [kind for kind, _ in launches.events[:4]] == ["prompts", "frames", "audio", "prompts"]


def test_the_time_of_a_prefill_batch_is_not_taken_for_that_of_other_launches(
    open_engine: Opener, launches: Launches, engine_clock: EngineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the engine would seem too slow to play, and chunks would grow though little audio is in hand."""
    observed: list[float] = []
    rounds: list[float] = []
    plan = ChunkPolicy.plan_next

    def observe(cost: Cost, size: int, seconds: float, *, warm: bool = True) -> None:
        if cost is not engine._state.costs.prefill:
            observed.append(seconds)

    def plan_next(policy: ChunkPolicy, frames: int, ahead_s: float, most: int, round_s: float) -> None:
        rounds.append(round_s)
        plan(policy, frames, ahead_s, most, round_s)

    monkeypatch.setattr(Cost, "observe", observe)
    monkeypatch.setattr(ChunkPolicy, "plan_next", plan_next)
    engine = open_engine(max_chunk_frames=1)
    arrived: list[SpeechStream] = []

    def look(index: int) -> None:
        if launches.events[index] == ("audio", [1]) and not arrived:
            arrived.append(engine.speak(TEXT, seed=9))
        elif launches.events[index] == ("prompts", [2]):
            engine_clock.passed_s += FRAME_SECONDS

    launches.on_launch = look
    hear(*begin(engine, 1))
    hear(*arrived)
    assert arrived
    assert ("prompts", [2]) in launches.events
    assert 0 < max(observed) < FRAME_SECONDS / 2
    assert 0 < max(rounds) < FRAME_SECONDS / 2


def test_a_launch_costs_all_of_the_time_since_the_launch_before(
    open_engine: Opener, launches: Launches, engine_clock: EngineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's work between two launches counts; the time in which the engine had nothing to do does not."""
    observed: list[float] = []

    def observe(cost: Cost, size: int, seconds: float, *, warm: bool = True) -> None:
        if cost is not engine._state.costs.prefill:
            observed.append(seconds)

    monkeypatch.setattr(Cost, "observe", observe)
    engine = open_engine(max_chunk_frames=1)
    waits_for_text = engine.speak(None, layout="interleaved")
    waits_for_text.feed("Hello there, this is ")
    eventually(lambda: stands_still(launches.events), "nothing is left to do")
    observed.clear()
    engine_clock.passed_s += 100.0
    waits_for_text.feed("a sentence.")
    waits_for_text.finish()
    hear(waits_for_text)
    assert max(observed) < 1.0, "the engine had rested"
    launch, host_s = Dispatcher.launch, 0.25

    def with_host_work(dispatcher: Dispatcher) -> bool:
        did = launch(dispatcher)
        engine_clock.passed_s += host_s
        return did

    with engine.borrow_backends():
        monkeypatch.setattr(Dispatcher, "launch", with_host_work)
        observed.clear()
    hear(*begin(engine, 1))
    assert min(observed) >= host_s


def test_a_prefill_batch_leaves_time_for_a_frame_of_every_playing_stream(
    open_engine: Opener, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has one frame in hand, and a decode step with a codec step takes about as long as it plays."""
    engine = open_engine(max_chunk_frames=1)
    arrived: list[SpeechStream] = []

    def arrive(index: int) -> None:
        if launches.events[index] == ("audio", [1, 1]) and not arrived:
            launches.arrived_at = index
            monkeypatch.setattr(Cost, "predict", lambda cost, size: 0.06)
            arrived.append(engine.speak(TEXT, seed=9))

    launches.on_launch = arrive
    hear(*begin(engine, 2))
    hear(*arrived)
    assert launches.after(launches.arrived_at, 1) == [("frames", [1, 2])], "before the new prompt"


def engine_talker(engine: Engine) -> FakeTalker:
    with engine.borrow_backends() as (talker, _):
        assert isinstance(talker.decoder, FakeTalker)
        return talker.decoder


def test_the_engine_counts_what_its_time_is_spent_on(open_engine: Opener, launches: Launches) -> None:
    engine = open_engine()
    engine._state.clock = time.monotonic
    hear(*begin(engine, 3))
    metrics = engine.metrics()
    frames = [what for kind, what in launches.events if kind == "frames"]
    assert (metrics.decode_calls, metrics.decode_rows) == (len(frames), sum(map(len, frames)))
    assert metrics.begun == 3
    assert metrics.ticks >= metrics.decode_calls
    assert min(metrics.host_s, metrics.backend_s, metrics.queue_wait_s) > 0
