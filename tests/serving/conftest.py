"""Fixtures that tests of the client and of the server share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

import process_backends
from client_stage import Pair
from fake_backend import Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.plugins import BackendRegistry
from megatalker.serving.client import RemoteEngine
from megatalker.serving.processes import ProcessEngine
from megatalker.voices import Voice
from process_stage import Opener as ProcessOpener
from process_stage import process_settings
from serving import Served, Server, serving


@pytest.fixture
def connect(tiny_custom_voice: Checkpoint) -> Iterator[Pair]:
    with ExitStack() as stack:

        def connector(*fakes: Fakes, **settings: Any) -> tuple[Served, RemoteEngine]:
            served = stack.enter_context(serving(tiny_custom_voice, *fakes, **settings))
            return served, stack.enter_context(RemoteEngine(served.url))

        yield connector


@pytest.fixture
def serve(tiny_custom_voice: Checkpoint) -> Iterator[Server]:
    with ExitStack() as stack:
        yield lambda *fakes, **settings: stack.enter_context(serving(tiny_custom_voice, *fakes, **settings))


@pytest.fixture(scope="module")
def shared(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    """One server for all tests of a file that neither configure it nor count what it did."""
    with serving(tiny_custom_voice) as served:
        yield served


@pytest.fixture
def quick_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A voice that its recording decides, without the official encoders."""

    def clone(self: Any, audio: Any, *, reference_text: str | None) -> Voice:
        hidden = self._checkpoint.config.talker.hidden_size
        vector = torch.from_numpy(np.resize(audio[2_000:2_100], hidden).astype(np.float32))
        return Voice(x_vector=vector, checkpoint_fingerprint=self._checkpoint.fingerprint)

    monkeypatch.setattr("megatalker.voices.cloner.VoiceCloner.clone", clone)


@pytest.fixture
def open_processes(tiny_custom_voice: Checkpoint) -> Iterator[ProcessOpener]:
    with ExitStack() as stack:

        def opener(
            registry: Callable[[], BackendRegistry] = process_backends.paced, engines: int = 1, **changes: Any
        ) -> ProcessEngine:
            settings, devices = process_settings(**changes), ["cpu"] * engines
            return stack.enter_context(
                ProcessEngine.open(settings, checkpoint=tiny_custom_voice, devices=devices, registry=registry)
            )

        yield opener


@pytest.fixture
def here(tiny_custom_voice: Checkpoint) -> Iterator[Engine]:
    with Engine.open(process_settings(), checkpoint=tiny_custom_voice, registry=process_backends.paced()) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _first_calls_are_for_streams(unrehearsed: None) -> None:
    """Fakes are scripted by the number of a call: the first one is a stream's."""
