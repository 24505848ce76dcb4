"""Hundreds of listeners of one GPU, in virtual time: what they hear and when, by the order of launches alone."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import dispatcher
from megatalker.interfaces import StreamHandle, StreamRequest
from megatalker_benchmarks.virtual_engine import Listener, VirtualCaller, VirtualEngine, at_once, poisson
from megatalker_benchmarks.virtual_machine import H200, MachineCosts, VirtualClock, VirtualTalker

pytestmark = pytest.mark.slow

ENDLESS: dict[str, Any] = {"speech_s": 60.0, "max_ahead_s": 2.0}
SLOW = H200.at(host=1.4)


def listen(
    checkpoint: Checkpoint, callers: Iterable[VirtualCaller], until_s: float, machine: MachineCosts = H200
) -> Sequence[Listener]:
    return VirtualEngine(checkpoint, VirtualClock(machine)).listen(callers, until_s)


def first_p95(listeners: Sequence[Listener]) -> float:
    return float(np.quantile([one.first_s for one in listeners], 0.95))


def gaps(listeners: Sequence[Listener]) -> list[float]:
    return [gap for one in listeners for gap in one.gaps_s]


def test_40_requests_a_second(tiny_custom_voice: Checkpoint) -> None:
    heard = listen(tiny_custom_voice, poisson(40, 5, speech_s=4.0), 60)
    assert not gaps(heard)
    assert first_p95(heard) < 0.02


def test_100_requests_a_second_ask_for_400_times_real_time(tiny_custom_voice: Checkpoint) -> None:
    """For so long that what is in hand would be used up, if newcomers took more than those that play can spare."""
    heard = listen(tiny_custom_voice, poisson(100, 16, speech_s=4.0), 60)
    assert len(gaps(heard)) < 0.01 * len(heard)
    assert max(gaps(heard), default=0) < 0.02
    assert first_p95(heard) < 0.04


def test_more_than_the_device_can_make_keeps_newcomers_waiting_and_nobody_else(tiny_custom_voice: Checkpoint) -> None:
    """300 requests a second ask for 1,200 times real time, of about 600."""
    heard = listen(tiny_custom_voice, poisson(300, 3, speech_s=4.0), 60)
    assert all(one.first_s for one in heard)
    assert sum(gaps(heard)) < 0.01 * len(heard)
    assert max(gaps(heard), default=0) < 0.03
    assert first_p95(heard) > 0.3


@pytest.mark.parametrize("count", [128, 256])
def test_endless_streams_that_begin_at_once(tiny_custom_voice: Checkpoint, count: int) -> None:
    heard = listen(tiny_custom_voice, at_once(count, **ENDLESS), 5)
    assert sum(gaps(heard)) < 0.002 * count
    assert first_p95(heard) < 0.0012 * count


def test_those_who_come_at_one_moment_begin_together_and_one_alone_waits_for_nobody(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, prefill = list[tuple[float, int]](), VirtualTalker.prefill

    def noted(talker: VirtualTalker, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        if talker._clock.now >= 1.0:
            begun.append((talker._clock.now, len(requests)))
        return prefill(talker, requests)

    monkeypatch.setattr(VirtualTalker, "prefill", noted)
    apart_s = 0.9 * dispatcher.ARRIVALS_APART_S
    coming = [VirtualCaller(at=at, **ENDLESS) for at in (1.0, *(1.0 + place * apart_s for place in range(200)))]
    listen(tiny_custom_voice, coming[:17], 2)
    assert [count for _, count in begun] == [17], "two were there when the engine's thread looked"
    begun.clear()
    listen(tiny_custom_voice, coming, 2)
    assert begun[0][0] - 1.0 < 1.5 * dispatcher.MOST_ARRIVALS_S, "others go on coming"
    monkeypatch.setattr(dispatcher, "ARRIVALS_APART_S", 0.5)
    (alone,) = listen(tiny_custom_voice, coming[:1], 2)
    assert alone.first_s < 0.02


def test_as_many_as_it_can_make_are_all_heard(tiny_custom_voice: Checkpoint) -> None:
    """Several numbers are tried, since one stream more changes which streams begin together."""
    for count in (480, 490, 500):
        heard = listen(tiny_custom_voice, at_once(count, **ENDLESS), 6)
        assert all(one.first_s for one in heard)
        assert not gaps(heard)
        assert first_p95(heard) < 1.2


def test_where_each_chunk_takes_the_host_long_they_become_larger_until_all_keep_pace(
    tiny_custom_voice: Checkpoint,
) -> None:
    """A server in the same process: were everybody sent frame by frame, there would be no time for larger chunks."""
    hundreds_are_heard(tiny_custom_voice, replace(H200, taking_ms=0.06), 2.0)


def hundreds_are_heard(checkpoint: Checkpoint, machine: MachineCosts, within_s: float) -> None:
    for count in (480, 490, 500):
        heard = listen(checkpoint, at_once(count, **ENDLESS), 6, machine)
        assert all(one.first_s for one in heard)
        assert not gaps(heard)
        assert first_p95(heard) < within_s


def test_what_a_slow_host_takes_is_left_to_those_who_play(tiny_custom_voice: Checkpoint) -> None:
    """Newcomers come no faster than it, not only its device, can serve them with the others."""
    hundreds_are_heard(tiny_custom_voice, replace(SLOW, taking_ms=0.1), 3.5)


def test_on_a_slow_host_all_wait_longer_and_nobody_hears_a_gap(tiny_custom_voice: Checkpoint) -> None:
    for count in (470, 495, 505):  # chunks of hundreds fall together
        heard = listen(tiny_custom_voice, at_once(count, **ENDLESS), 6, SLOW)
        assert not gaps(heard)
    # somebody's next frame is needed before others' audio, which can wait
    heard = listen(tiny_custom_voice, poisson(300, 3, speech_s=4.0), 60, SLOW)
    assert len(gaps(heard)) < 20
