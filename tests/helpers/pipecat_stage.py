"""A stage for the Pipecat service: engines on fake backends, frames in, everything that comes out."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
from pipecat.frames.frames import (
    AggregatedTextFrame,
    EndFrame,
    EndWorkerFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TTSService
from pipecat.tests.utils import run_test

from megatalker import Engine
from megatalker_pipecat import EnginePool, MegatalkerTTSService
from waiting import HANG_S

T = TypeVar("T")


def service_with(pool: EnginePool) -> type[MegatalkerTTSService]:
    """Return a class of services that take their engines from ``pool``."""

    class PooledService(MegatalkerTTSService):
        engines = pool

    return PooledService


def turn(*pieces: str) -> list[Frame]:
    """A language model's answer."""
    return [LLMFullResponseStartFrame(), *map(LLMTextFrame, pieces), LLMFullResponseEndFrame()]


class Entrance(FrameProcessor):
    """Pass every frame on. Tests send frames here in reply to a sound."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)

    async def send(self, *frames: Frame) -> None:
        for frame in frames:
            await self.push_frame(frame)

    async def end(self) -> None:
        """No more will be sent: end the pipeline once everything has passed."""
        await self.push_frame(EndWorkerFrame(), FrameDirection.UPSTREAM)


Listener = Callable[[Frame], Awaitable[None]]


class Ear(FrameProcessor):
    """Hands every frame that reaches it to a listener before passing it on."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self._listener(frame)
        await self.push_frame(frame, direction)


@dataclass
class ServiceOutput:
    """Frames that came out of the service."""

    down: Sequence[Frame]
    up: Sequence[Frame]

    def named(self) -> list[str]:
        return named(self.down)

    def of(self, kind: type[Frame]) -> list[Any]:
        return [frame for frame in self.down if isinstance(frame, kind)]

    def audio(self, context_id: str | None = None) -> bytes:
        frames = self.of(TTSAudioRawFrame)
        return b"".join(frame.audio for frame in frames if context_id in (None, frame.context_id))

    def words(self) -> list[str]:
        return [frame.text for frame in self.of(TTSTextFrame)]


def named(frames: Sequence[Frame]) -> list[str]:
    """Frames by name, text frames with their text; a run of audio frames is one entry."""
    names = [
        f"{frame.name.split('#')[0]}({frame.text})"
        if isinstance(frame, AggregatedTextFrame)
        else frame.name.split("#")[0]
        for frame in frames
    ]
    return [
        name
        for name, run in groupby(names)
        for _ in (run if name != "TTSAudioRawFrame" else [None])
        if name != "AggregatedTextProgressFrame"
    ]


async def perform(
    service: TTSService,
    frames: Sequence[Frame],
    *,
    hear: Callable[[Entrance, Frame], Awaitable[None]] | None = None,
    watch: Callable[[Frame], None] = lambda frame: None,
    after: Sequence[FrameProcessor] = (),
    params: PipelineParams | None = None,
    start_timeout: float = HANG_S,
) -> ServiceOutput:
    """Run the service in a pipeline.

    ``watch`` sees each frame that comes out; so does ``hear``, which may send more in, and must end the pipeline.
    """
    entrance = Entrance()

    async def listener(frame: Frame) -> None:
        watch(frame)
        if hear is not None:
            await hear(entrance, frame)

    down, up = await asyncio.wait_for(
        run_test(
            Pipeline([entrance, service, Ear(listener), *after]),
            frames_to_send=frames,
            pipeline_params=params,
            start_timeout=start_timeout,
            send_end_frame=hear is None,
        ),
        HANG_S + start_timeout,
    )
    ends = (EndFrame, EndWorkerFrame)
    return ServiceOutput(*([frame for frame in frames if not isinstance(frame, ends)] for frames in (down, up)))


def pcm16(engine: Engine, text: str, **wishes: Any) -> bytes:
    """Return the engine's speech for a text, generated alone, as 16-bit PCM at 24 kHz."""
    samples = in_a_thread(engine.speak(text, **wishes).read_all)
    return np.rint(samples * 32767.0).astype("<i2").tobytes()


def fed_pcm16(engine: Engine, *pieces: str, **wishes: Any) -> bytes:
    """Return :func:`pcm16` of text whose first piece is being spoken when the others arrive."""

    def fed() -> np.ndarray:
        with engine.speak(None, **wishes) as stream:
            stream.feed(pieces[0])
            first = next(stream).pcm
            for piece in pieces[1:]:
                stream.feed(piece)
            stream.finish()
            return np.concatenate([first, stream.read_all()])

    return np.rint(in_a_thread(fed) * 32767.0).astype("<i2").tobytes()


def in_a_thread(work: Callable[[], T]) -> T:
    """The result of work that waits, also within an event loop, which stands still meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def when_first_heard(*frames: Frame) -> Callable[[Entrance, Frame], Awaitable[None]]:
    """A listener that sends frames, and the end, when it hears the first audio."""
    heard = False

    async def hear(entrance: Entrance, frame: Frame) -> None:
        nonlocal heard
        if isinstance(frame, TTSAudioRawFrame) and not heard:
            heard = True
            await entrance.send(*frames)
            await entrance.end()

    return hear


@dataclass
class Brake:
    """Stops a fake backend before its ``after``-th decode call until it is let go."""

    after: int
    reached: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, call: int) -> None:
        if call >= self.after:
            self.reached.set()
            assert self.let_go.wait(HANG_S), "nobody let the backend go on"

    async def wait_until_reached(self) -> None:
        await asyncio.to_thread(self.reached.wait, HANG_S)


def closing(service: type[Any]) -> type[Any]:
    """The service, closing its client: Pipecat leaves that to the garbage collector, which warns."""

    class Closing(service):  # type: ignore[misc]
        async def cleanup(self) -> None:
            await super().cleanup()
            await self._client.close()

    Closing.__name__ = service.__name__
    return Closing
