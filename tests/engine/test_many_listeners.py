"""Hundreds of listeners of one GPU, in virtual time: what they hear and when, by the order of launches alone."""

from collections.abc import Sequence

import numpy as np
import pytest

import virtual_device
from megatalker.checkpoint import Checkpoint
from megatalker.engine import dispatcher
from megatalker.interfaces import StreamHandle, StreamRequest
from virtual_device import DeviceTalker, Listener, listen

pytestmark = pytest.mark.slow

REQUEST_S = 0.00015
"""Seconds that checking one request takes its caller: requests at one moment come this far apart."""


def poisson(rate: float, seconds: float) -> list[float]:
    moments = np.cumsum(np.random.default_rng(1).exponential(1 / rate, round(2 * rate * seconds)))
    return [float(moment) for moment in moments if moment < seconds]


def at_once(count: int) -> list[float]:
    return [1.0 + place * REQUEST_S for place in range(count)]


def first_p95(listeners: Sequence[Listener]) -> float:
    return float(np.quantile([one.first_s for one in listeners], 0.95))


def gaps(listeners: Sequence[Listener]) -> list[float]:
    return [gap for one in listeners for gap in one.gaps_s]


def test_40_requests_a_second(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = listen(tiny_custom_voice, poisson(40, 5), until_s=60, speech_s=4, max_ahead_s=None, patch=monkeypatch)
    assert not gaps(heard)
    assert first_p95(heard) < 0.02


def test_100_requests_a_second_ask_for_400_times_real_time(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For so long that what is in hand would be used up, if newcomers took more than those that play can spare."""
    heard = listen(tiny_custom_voice, poisson(100, 16), until_s=60, speech_s=4, max_ahead_s=None, patch=monkeypatch)
    assert len(gaps(heard)) < 0.01 * len(heard)
    assert max(gaps(heard), default=0) < 0.02
    assert first_p95(heard) < 0.04


def test_more_than_the_device_can_make_keeps_newcomers_waiting_and_nobody_else(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 requests a second ask for 1,200 times real time, of about 600."""
    heard = listen(tiny_custom_voice, poisson(300, 3), until_s=60, speech_s=4, max_ahead_s=None, patch=monkeypatch)
    assert all(one.first_s for one in heard)
    assert sum(gaps(heard)) < 0.01 * len(heard)
    assert max(gaps(heard), default=0) < 0.03
    assert first_p95(heard) > 0.3


@pytest.mark.parametrize("count", [128, 256])
def test_endless_streams_that_begin_at_once(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    heard = listen(tiny_custom_voice, at_once(count), until_s=5, speech_s=60, max_ahead_s=2.0, patch=monkeypatch)
    assert sum(gaps(heard)) < 0.002 * count
    assert first_p95(heard) < 0.0012 * count


def test_those_who_come_at_one_moment_begin_together_and_one_alone_waits_for_nobody(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, prefill = list[tuple[float, int]](), DeviceTalker.prefill

    def noted(talker: DeviceTalker, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        begun.append((talker.time.now, len(requests)))
        return prefill(talker, requests)

    monkeypatch.setattr(DeviceTalker, "prefill", noted)
    coming = [1.0, *(1.0 + 0.9 * place * dispatcher.ARRIVALS_APART_S for place in range(200))]
    listen(tiny_custom_voice, coming[:17], until_s=2, speech_s=60, max_ahead_s=2.0, patch=monkeypatch)
    assert [count for _, count in begun] == [17], "two were there when the engine's thread looked"
    begun.clear()
    listen(tiny_custom_voice, coming, until_s=2, speech_s=60, max_ahead_s=2.0, patch=monkeypatch)
    assert begun[0][0] - coming[0] < 1.5 * dispatcher.MOST_ARRIVALS_S, "others go on coming"
    monkeypatch.setattr(dispatcher, "ARRIVALS_APART_S", 0.5)
    (alone,) = listen(tiny_custom_voice, [1.0], until_s=2, speech_s=60, max_ahead_s=2.0, patch=monkeypatch)
    assert alone.first_s < 0.02


def test_as_many_as_it_can_make_are_all_heard(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several numbers are tried, since one stream more changes which streams begin together."""
    for count in (480, 490, 500):
        heard = listen(tiny_custom_voice, at_once(count), until_s=6, speech_s=60, max_ahead_s=2.0, patch=monkeypatch)
        assert all(one.first_s for one in heard)
        assert not gaps(heard)
        assert first_p95(heard) < 1.2


def test_where_each_chunk_takes_the_host_long_they_become_larger_until_all_keep_pace(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server in the same process: were everybody sent frame by frame, there would be no time for larger chunks."""
    hundreds_are_heard_though_a_chunk_takes(0.06, 2.0, tiny_custom_voice, monkeypatch)


def hundreds_are_heard_though_a_chunk_takes(
    taking_ms: float, within_s: float, checkpoint: Checkpoint, patch: pytest.MonkeyPatch
) -> None:
    patch.setattr(virtual_device, "TAKING_MS", taking_ms)
    for count in (480, 490, 500):
        heard = listen(checkpoint, at_once(count), until_s=6, speech_s=60, max_ahead_s=2.0, patch=patch)
        assert all(one.first_s for one in heard)
        assert not gaps(heard)
        assert first_p95(heard) < within_s


@pytest.fixture
def slow_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls take 1.4 times as long."""
    for name in ("PROMPT_CALL_MS", "FRAME_CALL_MS", "AUDIO_CALL_MS"):
        once, each = getattr(virtual_device, name)
        monkeypatch.setattr(virtual_device, name, (1.4 * once, 1.4 * each))


@pytest.mark.usefixtures("slow_host")
def test_what_a_slow_host_takes_is_left_to_those_who_play(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newcomers come no faster than it, not only its device, can serve them with the others."""
    hundreds_are_heard_though_a_chunk_takes(0.1, 3.5, tiny_custom_voice, monkeypatch)


@pytest.mark.usefixtures("slow_host")
def test_on_a_slow_host_all_wait_longer_and_nobody_hears_a_gap(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (470, 495, 505):  # chunks of hundreds fall together
        heard = listen(tiny_custom_voice, at_once(count), until_s=6, speech_s=60, max_ahead_s=2.0, patch=monkeypatch)
        assert not gaps(heard)
    # somebody's next frame is needed before others' audio, which can wait
    heard = listen(tiny_custom_voice, poisson(300, 3), until_s=60, speech_s=4, max_ahead_s=None, patch=monkeypatch)
    assert len(gaps(heard)) < 20
