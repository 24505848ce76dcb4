"""Play one load: every listener is a task of one event loop, and none has a thread."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.cli.bench.playback import Playback
from megatalker.cli.bench.traffic import Traffic
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.outputs import require_complete
from megatalker.engine.speech.protocols import Speech, SpeechEngine
from megatalker.errors import MegatalkerError
from megatalker.sampling import SamplingParams
from megatalker.serving.background import start_task

DRAIN_S = 10.0
"""Seconds to wait after the measurement for outstanding first chunks."""
POLL_S = 0.02
SETTLE_S = 0.3
"""Seconds in which an engine drops cancelled streams: what its device still makes for them delays the next load."""
FOREVER = 2**31 - 1
"""The fewest frames of speech that is cut off by something else."""

Samples = NDArray[np.float32]
Listen = Callable[[str, SpeechOptions, float | None], AsyncIterator[Samples]]
"""Speaks a text, given at once or at a number of words a second, and yields its samples as they come. Raises a
``MegatalkerError`` where something is wrong with it."""

TEXTS = (
    "Good morning, thank you for calling. How can I help you today?",
    "Your appointment is on Tuesday at half past nine in the morning.",
    "The small boats sail home before it gets dark and cold.",
    "I am sorry to hear that. Let me look into your order for you.",
    "Please turn left at the next crossing, then follow the river for two miles.",
    "It will be mostly sunny tomorrow, with a light wind from the west.",
)


@dataclass(frozen=True, slots=True)
class Script:
    """Text and settings of every request of a load."""

    texts: Sequence[str] = TEXTS
    length_s: float | None = 4.0
    """Speech goes on for these seconds and stops then; ``None``: as the model ends it."""
    words_a_second: float | None = None
    """Text is fed word by word, as a language model writes it; ``None``: given at once."""
    ahead_s: float | None = None
    voice: str | None = None

    def options(self, index: int, *, endless: bool) -> SpeechOptions:
        """Return the options of the request of this number."""
        frames = None if self.length_s is None else max(1, round(self.length_s / FRAME_SECONDS))
        least = FOREVER if endless else frames
        return SpeechOptions(
            voice=self.voice,
            seed=index,
            sampling=None if least is None else SamplingParams(min_new_tokens=least),
            max_frames=None if endless else frames,
            max_ahead_s=self.ahead_s,
        )


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Playbacks of all listeners of one load."""

    traffic: Traffic
    seconds: float
    """How long the measurement took."""
    playbacks: Sequence[Playback]
    audio_s: float
    """Speech that arrived in that time."""
    listening_s: float
    """Processor time of all listeners together."""


def never_ends(options: SpeechOptions) -> bool:
    """Whether speech is made to go on until something cuts it, which is no error then."""
    return options.sampling is not None and options.sampling.min_new_tokens == FOREVER


def listening_to(engine: SpeechEngine) -> Listen:
    """Return an engine, near or far, in the form that :func:`drive` plays loads against."""
    return partial(_listen, engine)


async def drive(listen: Listen, traffic: Traffic, script: Script, seconds: float) -> LoadResult:
    """Play a load for ``seconds``, wait for first chunks still to come, cancel the rest, and let the engine settle.

    A request that is refused or fails is counted with its kind of error, and does not end the load.
    """
    session = _Session(listen, traffic, script)
    began, cpu = time.monotonic(), time.thread_time()
    tasks = set()
    for start in traffic.starts(seconds, seed=0):
        await asyncio.sleep(max(0.0, began + start - time.monotonic()))
        tasks.add(asyncio.create_task(session.call()))
    await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
    measured, cpu = time.monotonic() - began, time.thread_time() - cpu
    audio_s, session.closing = sum(playback.audio_s for playback in session.playbacks), True
    deadline = time.monotonic() + DRAIN_S
    while session.unanswered and time.monotonic() < deadline and not all(task.done() for task in tasks):
        await asyncio.sleep(POLL_S)
    for playback in session.unanswered:
        playback.error = "NoAnswer"
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):  # what refuses or fails a request is counted; this is neither
            raise ended
    await asyncio.sleep(SETTLE_S)
    return LoadResult(traffic, measured, session.playbacks, audio_s, cpu)


class _Session:
    def __init__(self, listen: Listen, traffic: Traffic, script: Script) -> None:
        self._listen, self._traffic, self._script = listen, traffic, script
        self._numbers = itertools.count()
        self.playbacks: list[Playback] = []
        self.closing = False

    @property
    def unanswered(self) -> list[Playback]:
        return [playback for playback in self.playbacks if playback.first_at is None and playback.error is None]

    async def call(self) -> None:
        """Make one request; of endless streams one after another, until one fails."""
        while await self._speak() and self._traffic.endless and not self.closing:
            pass

    async def _speak(self) -> bool:
        index = next(self._numbers)
        script = self._script
        playback = Playback(time.monotonic())
        self.playbacks.append(playback)
        try:
            options = script.options(index, endless=self._traffic.endless)
            async for pcm in self._listen(script.texts[index % len(script.texts)], options, script.words_a_second):
                playback.take(pcm, time.monotonic())
        except MegatalkerError as error:
            playback.error = type(error).__name__
        except asyncio.CancelledError:
            if self._traffic.endless:
                playback.break_off(time.monotonic())
            raise
        return playback.error is None


async def _listen(
    engine: SpeechEngine, text: str, options: SpeechOptions, words_a_second: float | None
) -> AsyncIterator[Samples]:
    async with engine.speak(text if words_a_second is None else None, options) as stream:
        failures: list[BaseException] = []

        def give_up(error: BaseException) -> None:
            failures.append(error)
            stream.cancel()

        writing = None
        if words_a_second is not None:
            writing = start_task(_write(stream, text, words_a_second), "megatalker-writer", give_up)
        try:
            async for chunk in stream:
                yield chunk.pcm
        finally:
            if writing is not None:
                writing.cancel()
        if failures:
            raise failures[0]
    if not never_ends(options):
        require_complete(stream.facts(), bound_asked=options.max_frames is not None)


async def _write(stream: Speech, text: str, words_a_second: float) -> None:
    for word in text.split():
        stream.feed(word + " ")
        await asyncio.sleep(1 / words_a_second)
    stream.finish()
