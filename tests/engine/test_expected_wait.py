"""The wait that a caller is told, and how long it waits, in virtual time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.settings import Settings
from megatalker_benchmarks.virtual_engine import TEXT, Listener, VirtualCaller, VirtualEngine, at_once, poisson
from megatalker_benchmarks.virtual_machine import H200, PROCESSOR, VirtualClock

pytestmark = pytest.mark.slow

WORTH_TELLING_S = 1.0
"""Nobody is told to come again sooner."""


def of_all_lengths(callers: Sequence[VirtualCaller], seed: int) -> list[VirtualCaller]:
    """Let them speak for 1 to 20 s, at a pace that differs from text to text."""
    random = np.random.default_rng(seed)
    chars = np.clip(random.exponential(60, len(callers)), 15, 300).astype(int)
    lengths = chars * random.normal(0.066, 0.008, len(callers))
    return [
        replace(caller, text=(6 * TEXT)[:count], speech_s=float(length))
        for caller, count, length in zip(callers, chars, lengths, strict=True)
    ]


@dataclass(frozen=True)
class Load:
    """Callers of a machine that is too slow for all of them."""

    callers: Callable[[int], Sequence[VirtualCaller]]
    """By seed."""
    on_processor: bool = False
    max_streams: int = 1024
    max_waiting: int = 4096
    max_wait_s: float | None = None

    def run(self, checkpoint: Checkpoint, host: float, seed: int, slowed_at: float | None = None) -> list[Listener]:
        """Return the listeners, on a machine which from some moment on is half as fast."""
        machine = PROCESSOR.at(host, host) if self.on_processor else H200.at(host)
        clock = VirtualClock(machine, seed)
        if slowed_at is not None:
            clock.slowness = lambda now: 2.0 if now > slowed_at else 1.0
        limits = {"max_streams": self.max_streams, "max_waiting": self.max_waiting, "max_wait_s": self.max_wait_s}
        return VirtualEngine(checkpoint, clock, Settings(**limits, max_open=8192)).listen(self.callers(seed), 300.0)


LOADS = {
    "twice what an H200 can make": Load(lambda seed: poisson(340, 3, seed, speech_s=4.0)),
    "four times": Load(lambda seed: poisson(680, 2, seed, speech_s=4.0)),
    "texts of all lengths": Load(lambda seed: of_all_lengths(poisson(500, 3, seed, speech_s=4.0), seed)),
    "all at once": Load(lambda _: at_once(1000, speech_s=3.0)),
    "few slots": Load(lambda seed: poisson(400, 2, seed, speech_s=4.0), max_streams=32),
    "a processor": Load(lambda seed: of_all_lengths(poisson(10, 10, seed, speech_s=4.0), seed), True, 8),
    "near playback": Load(lambda seed: poisson(10, 10, seed, speech_s=4.0, max_ahead_s=1.0), True, 8),
    "one slot": Load(lambda seed: poisson(10, 5, seed, speech_s=4.0), True, 1),
}


def waited_over_told(listeners: Sequence[Listener], since: float = 0.0) -> Sequence[float]:
    """Return the wait for a first chunk by what was foreseen when the request was let in, for those that waited."""
    return [
        one.first_s / told.wait_s
        for one in listeners
        for told in one.told[:1]
        if not told.refused and told.at > since and told.wait_s is not None and told.wait_s > WORTH_TELLING_S
    ]


@pytest.mark.parametrize("host", [0.5, 2.0])
@pytest.mark.parametrize("load", LOADS.values(), ids=list(LOADS))
def test_a_first_chunk_comes_within_twice_the_wait_that_was_foreseen(
    tiny_custom_voice: Checkpoint, load: Load, host: float
) -> None:
    waits = waited_over_told(load.run(tiny_custom_voice, host, seed=1))
    assert len(waits) > 10
    assert np.quantile(waits, 0.99) < 2
    assert max(waits) < 2.5, "where all speak for the same time, many end at the same moment, and somebody misses it"
    assert 0.4 < np.median(waits) < 1.5


@pytest.mark.parametrize("name", ["twice what an H200 can make", "a processor"])
def test_a_machine_that_has_become_slower_says_so(tiny_custom_voice: Checkpoint, name: str) -> None:
    listeners = LOADS[name].run(tiny_custom_voice, 1.0, seed=1, slowed_at=1.5)
    waits = waited_over_told(listeners, since=2.5)
    assert len(waits) > 20
    assert max(waits) < 2


@pytest.mark.parametrize("limits", [{"max_streams": 64, "max_waiting": 100}, {"max_streams": 8, "max_wait_s": 2.0}])
@pytest.mark.parametrize("on_processor", [False, True])
def test_a_caller_that_comes_back_when_it_was_told_to_is_heard_within_twice_that_time(
    tiny_custom_voice: Checkpoint, on_processor: bool, limits: dict[str, int]
) -> None:
    """The caller alone comes back: nobody else has come meanwhile."""
    callers = [*at_once(8, speech_s=4.0), *at_once(500, at=5.0, speech_s=4.0)]
    load = replace(Load(lambda _: callers, on_processor), **limits)
    last = max(place for place, one in enumerate(load.run(tiny_custom_voice, 1.0, 3)) if one.told[0].refused)
    callers[last] = replace(callers[last], comes_back=True)
    listener = load.run(tiny_custom_voice, 1.0, 3)[last]
    refused, *others = listener.told
    assert refused.wait_s is not None
    assert not any(told.refused for told in others)
    assert refused.wait_s < listener.first_s < 2 * refused.wait_s


def test_callers_that_leave_while_they_wait_let_the_others_begin_sooner(tiny_custom_voice: Checkpoint) -> None:
    stay = at_once(60, speech_s=4.0)
    leave = at_once(60, at=1.001, speech_s=4.0, patience_s=3.0)
    last = at_once(20, at=1.02, speech_s=4.0)
    listeners = Load(lambda _: [*stay, *leave, *last], True, 8).run(tiny_custom_voice, 1.0, seed=1)
    assert all(one.first_s for one in listeners[:60] + listeners[120:])
    assert not any(one.frames for one in listeners[60:120] if not one.first_s)
    assert np.median(waited_over_told(listeners[120:])) < 0.8


def test_an_owner_that_fills_the_queue_is_told_its_own_wait(tiny_custom_voice: Checkpoint) -> None:
    many = at_once(100, speech_s=4.0, owner="many")
    few = [VirtualCaller(at=3.0 + place, speech_s=4.0, owner="few") for place in range(3)]
    listeners = Load(lambda _: [*many, *few], True, 8).run(tiny_custom_voice, 1.0, seed=1)
    assert all(one.told[0].wait_s == 0.0 and one.first_s < 0.5 for one in listeners[100:])
    waits = waited_over_told(listeners[:100])
    assert len(waits) > 50
    assert max(waits) < 2


@pytest.mark.parametrize("others", [2, 3])
def test_an_owner_of_short_texts_is_told_its_own_wait_beside_owners_of_long_ones(
    tiny_custom_voice: Checkpoint, others: int
) -> None:
    long = [one for place in range(others) for one in at_once(24, at=1.0, speech_s=40.0, owner=f"long {place}")]
    short = [replace(one, text=TEXT[:15], owner="short") for one in poisson(6, 20, 1, speech_s=1.0)]
    listeners = Load(lambda _: [*short, *long], True, 8, max_wait_s=30.0).run(tiny_custom_voice, 1.0, seed=1)
    told = [(one.first_s, one.told[0].wait_s or 0.0) for one in listeners[: len(short)]]
    waits = [first_s / wait_s for first_s, wait_s in told if wait_s > 0.3]
    assert len(waits) > 10
    assert 0.4 < np.median(waits) < 1.5
    assert max(waits) < 2
