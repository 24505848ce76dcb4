"""A process that was stopped or suspended: what did not run meanwhile is not to blame for being late."""

import threading
from collections.abc import Callable

import pytest

from engine_stage import TEXT, Opener, fakes_with
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine.costs import RunningClock
from megatalker.engine.guarded_calls import CallRegister
from megatalker.errors import CapacityError
from waiting import HANG_S, eventually

DEADLINE_S = 1.0


class PausableTime:
    """Real time, and pauses on top that a test decides on."""

    def __init__(self, source: Callable[[], float]) -> None:
        self.source, self.paused_s, self.readings = source, 0.0, 0

    def __call__(self) -> float:
        self.readings += 1
        return self.source() + self.paused_s

    def pause(self, seconds: float) -> None:
        """And let the watchdog look a few times."""
        self.paused_s += seconds
        before = self.readings
        eventually(lambda: self.readings >= before + 3, "somebody looks at the clock")


@pytest.fixture
def time_of_engines(monkeypatch: pytest.MonkeyPatch) -> PausableTime:
    """The time that deadlines of engines go by which are opened from now on."""
    made: list[PausableTime] = []

    def register(clock: Callable[[], float], longest_gap_s: float) -> CallRegister:
        made.append(PausableTime(clock))
        pausable.source = clock
        return CallRegister(pausable, longest_gap_s)

    pausable = PausableTime(lambda: 0.0)
    monkeypatch.setattr("megatalker.engine.engine.CallRegister", register)
    return pausable


def test_a_running_clock_leaves_out_long_gaps_between_its_readings() -> None:
    now = 100.0
    clock = RunningClock(lambda: now, longest_gap_s=0.5)
    began = clock()
    for gap, paused_s in ((0.2, 0.0), (0.5, 0.0), (22.0, 21.5), (0.1, 21.5), (1e6, 21.5 + 1e6 - 0.5)):
        now += gap
        assert clock.paused_s == pytest.approx(paused_s)
    assert clock() - began == pytest.approx(0.2 + 0.5 + 0.5 + 0.1 + 0.5)
    assert RunningClock(lambda: now)() == now, "without a limit it is the clock it was made from"


def test_pauses_during_a_call_do_not_make_it_late(open_engine: Opener, time_of_engines: PausableTime) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(call: int) -> None:
        if call == 12:
            entered.set()
            assert go_on.wait(HANG_S)

    fakes = Fakes(talkers={"first": Behaviour(on_decode=slow), "second": Behaviour()})
    engine = open_engine(fakes, step_deadline_s=DEADLINE_S)
    engine.warmup()
    stream = engine.speak(TEXT)
    assert entered.wait(HANG_S)
    for _ in range(3):
        time_of_engines.pause(22.0)
    go_on.set()
    assert stream.read_all().size == 30 * FRAME_SAMPLES
    assert (stream.switches, engine.backend, engine.metrics().faulty) == ((), "first", {})


def test_a_call_that_hangs_is_late_all_the_same(open_engine: Opener, time_of_engines: PausableTime) -> None:
    released = threading.Event()
    fakes = Fakes(
        talkers={
            "first": Behaviour(on_decode=lambda call: call == 12 and released.wait(HANG_S) and None),
            "second": Behaviour(),
        }
    )
    engine = open_engine(fakes, step_deadline_s=DEADLINE_S)
    engine.warmup()
    stream = engine.speak(TEXT)
    time_of_engines.paused_s += 22.0
    assert stream.read_all().size == 30 * FRAME_SAMPLES
    assert "did not return within 1 s" in stream.switches[0].reason
    released.set()


def test_a_request_does_not_wait_during_a_pause(open_engine: Opener, time_of_engines: PausableTime) -> None:
    """The engine's own clock goes on, as playback does; the limit of a wait for a row does not count the pause."""
    engine = open_engine(fakes_with(frames=None), max_streams=1, max_wait_s=HANG_S, max_untaken_s=1.0)
    engine._state.clock = PausableTime(engine._state.clock)
    first = engine.speak(TEXT, max_frames=10_000)
    next(first)
    waiting = engine.speak(TEXT, max_frames=3)
    eventually(lambda: engine.metrics().waiting == 1, "it waits")
    time_of_engines.paused_s += 2 * HANG_S
    engine._state.clock.paused_s += 2 * HANG_S
    next(first)
    assert waiting.finish_reason is None
    first.cancel()
    assert waiting.read_all().size == 3 * FRAME_SAMPLES


def test_a_request_that_waits_too_long_ends(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_streams=1, max_wait_s=0.2)
    first = engine.speak(TEXT, max_frames=10**4)
    next(first)
    with pytest.raises(CapacityError, match="no stream was free"):
        engine.speak(TEXT).read_all()
    first.cancel()
