"""The engine process that an utterance goes to."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import zmq

from megatalker.engine.codec_stage import WARM_VOICES
from megatalker.engine.speech.outputs import EngineMetrics
from megatalker.engine.speech.request import TalkerLimits
from megatalker.serving.processes.control import Attach, EngineState, address
from megatalker.serving.processes.handle import EngineHandle
from megatalker.serving.processes.messages import EngineStatus
from megatalker.serving.processes.routing import choose

ROBIN, MINA = b"robin", b"mina"


@pytest.fixture
def engines(tmp_path: Any) -> Any:
    """Three idle engines of eight streams each."""
    context: Any = zmq.Context()
    folder = str(tmp_path)
    states = [
        EngineState(
            engine=place,
            place=place,
            device="cpu",
            pid=1,
            orders=address(folder, f"engine-{place}"),
            calls="",
            max_streams=8,
            opened=True,
            warm=True,
        )
        for place in range(3)
    ]
    handles = [EngineHandle(state, context, Attach(0, ""), 0.0) for state in states]
    for handle in handles:
        report(handle)
    yield handles
    for handle in handles:
        handle.forget()
    context.term()


def report(handle: EngineHandle, active: int = 0, wait_s: float = 0.0) -> None:
    metrics = replace(EngineMetrics.nothing("fake", "noise"), active=active)
    handle.status = EngineStatus(handle.number, TalkerLimits("fake", True, 4096), metrics, wait_s, None)
    handle.begun = 0


def test_utterances_spread_over_the_engines(engines: list[EngineHandle]) -> None:
    for _ in range(12):
        choose(engines).count(None)
    assert [handle.begun for handle in engines] == [4, 4, 4]
    report(engines[0], active=7)
    report(engines[1], active=2)
    report(engines[2], active=3)
    assert choose(engines) is engines[1]
    for handle, wait_s in zip(engines, (0.3, 0.2, 0.4), strict=True):
        report(handle, active=9, wait_s=wait_s)
    assert choose(engines) is engines[1]


def test_an_engine_that_has_heard_a_recording_counts_as_one_stream_emptier(engines: list[EngineHandle]) -> None:
    engines[2].count(ROBIN)
    assert choose(engines, ROBIN) is engines[2]
    assert choose(engines, MINA) is choose(engines) is engines[0]
    placed: Counter[int] = Counter()
    for _ in range(23):
        chosen = choose(engines, ROBIN)
        chosen.count(ROBIN)
        placed[chosen.place] += 1
    assert max(placed.values()) - min(placed.values()) <= 1, "one popular voice does not fill one engine"


def test_recordings_that_an_engine_forgets_are_forgotten_here(engines: list[EngineHandle]) -> None:
    for number in range(WARM_VOICES + 1):
        engines[1].count(str(number).encode())
    assert not engines[1].has_heard(b"0")
    assert engines[1].has_heard(b"1")
