"""Fixtures that tests of the engine share."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from engine_stage import EngineClock, Opener
from fake_backend import Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.state import WorkerState
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
