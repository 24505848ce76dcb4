"""Fixtures that tests of the engine share."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from torch import Tensor

from engine_stage import EngineClock, Opener
from fake_backend import FakeCodec, Fakes, FakeTalker
from launches import Launches
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.costs import Cost
from megatalker.engine.state import WorkerState
from megatalker.interfaces import CodecState, DecodeStep, Frame, StreamHandle, StreamRequest
from megatalker.settings import Settings


@pytest.fixture
def open_engine(tiny_custom_voice: Checkpoint, arrival: None) -> Iterator[Opener]:
    with ExitStack() as stack:

        def opener(
            fakes: Fakes | None = None, *, checkpoint: Checkpoint = tiny_custom_voice, **settings: Any
        ) -> Engine:
            fakes = fakes or Fakes()
            settings = {"short_speech": "believe"} | settings  # a fake's frames know nothing of the text
            engine = Engine.open(Settings(**settings), checkpoint=checkpoint, registry=fakes.registry)
            return stack.enter_context(engine)

        yield opener


@pytest.fixture
def engine_clock(monkeypatch: pytest.MonkeyPatch) -> EngineClock:
    """The clock of engines that are opened from now on."""
    clock = EngineClock()
    monkeypatch.setattr(
        "megatalker.engine.engine.WorkerState", lambda talker, codec, _: WorkerState(talker, codec, clock)
    )
    return clock


@pytest.fixture
def busy_engine(open_engine: Opener) -> Iterator[Engine]:
    """It touches no request before the test has ended."""
    engine = open_engine()
    with engine.borrow_backends():
        yield engine


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, engine_clock: EngineClock) -> Launches:
    seen = Launches()
    prefill, decode, audio = FakeTalker.prefill, FakeTalker.decode, FakeCodec.decode

    def note_prefill(talker: FakeTalker, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = prefill(talker, requests)
        seen.note("prompts", [*handles])
        return handles

    def note_decode(talker: FakeTalker, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        seen.note("frames", [step.stream for step in steps])
        return decode(talker, steps)

    def note_audio(codec: FakeCodec, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        seen.note("audio", [len(fresh) for fresh in codes])
        return audio(codec, states, codes)

    monkeypatch.setattr(Cost, "observe", lambda cost, size, seconds, *, warm=True: None)  # how busy this machine is
    monkeypatch.setattr(FakeTalker, "prefill", note_prefill)
    monkeypatch.setattr(FakeTalker, "decode", note_decode)
    monkeypatch.setattr(FakeCodec, "decode", note_audio)
    return seen
