"""Engines on fake backends, for tests of adapters to voice-agent frameworks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fake_backend import Behaviour, Fakes
from megatalker import Checkpoint, Engine, Settings
from megatalker.serving.shared_engines.pool import EnginePool

FRAMES = 12


class DecodeFault:
    """Makes decode fail from call ``after`` on, and then at every call of later decoders."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, call: int) -> None:
        if call >= self.after:
            self.after = 0
            raise RuntimeError("the device is on fire")


def fakes(frames: int | None = FRAMES, **behaviour: Any) -> Fakes:
    """Return one fake talker that says ``frames`` frames for any text, and a codec of noise."""
    return Fakes(talkers={"fake": Behaviour(frames=frames, **behaviour)})


@contextmanager
def engine_on(plug_in: Fakes, checkpoint: Checkpoint, **settings: Any) -> Iterator[Engine]:
    with Engine.open(Settings(**settings), checkpoint=checkpoint, registry=plug_in.registry) as engine:
        yield engine


def pool_of(plug_in: Fakes, checkpoint: Checkpoint) -> EnginePool:
    """A pool that opens engines on fakes."""
    return EnginePool(lambda settings: Engine.open(settings, checkpoint=checkpoint, registry=plug_in.registry))
