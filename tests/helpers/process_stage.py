"""A stage for engines in processes of their own, on fake backends that take their time."""

from collections.abc import Callable
from typing import Any

import numpy as np

from megatalker.engine import SpeechStream
from megatalker.serving.processes import ProcessEngine
from megatalker.serving.processes.handle import EngineHandle
from megatalker.settings import Settings

TEXT = "Hello there, this is a sentence of a few words."
Opener = Callable[..., ProcessEngine]


def process_settings(**changes: Any) -> Settings:
    usual = {"device": "cpu", "backend": "fake", "codec": "noise", "short_speech": "believe", "runaway_guard": False}
    return Settings.model_validate(usual | changes)


def heard(stream: SpeechStream) -> tuple[bytes, bytes]:
    """All codes and all samples."""
    chunks = list(stream)
    assert [chunk.sample_offset for chunk in chunks] == [
        1920 * sum(c.frames for c in chunks[:n]) for n in range(len(chunks))
    ]
    codes = [chunk.codes for chunk in chunks if chunk.codes is not None]
    return np.concatenate(codes).tobytes(), np.concatenate([chunk.pcm for chunk in chunks]).tobytes()


def made_by(stream: SpeechStream) -> EngineHandle:
    handle: EngineHandle | None = stream._link.handle  # type: ignore[attr-defined]
    assert handle is not None
    return handle
