"""An engine's worker in virtual time, on a device whose launches take what they take on an H200 with 0.6B shapes.

One thread, and nothing waits: requests arrive at their moments, and whoever needs the device's result moves the clock
on. The engine's own Python takes no time, or with a ``host`` the processor time that it is measured to take here.
"""

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop
from time import thread_time
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fake_backend import CAPABILITIES, Behaviour, FakeCodec, Fakes, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS
from megatalker.engine.backend_role import codec_role, talker_role
from megatalker.engine.codec_stage import Download, Samples
from megatalker.engine.commands import Command, CommandQueue, Submit, Warmup
from megatalker.engine.guarded_calls import CallRegister
from megatalker.engine.speech.chunks import ChunkPolicy, ChunkQueue, Progress, Waiter, chunk_limit
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.outputs import Chunk
from megatalker.engine.speech.request import RequestChecker, TalkerLimits
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.engine.worker import Worker, WorkerSettings
from megatalker.interfaces import CodecState, DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from megatalker.prompt import PromptBuilder
from megatalker.settings import Settings
from megatalker_benchmarks.timed_device import AUDIO, FRAMES, PROMPTS, Costs

TEXT = "The quick brown fox jumps over the lazy dog again and again."
MOST_STREAMS = 1024
LoadedT = TypeVar("LoadedT", FakeTalker, FakeCodec)
PROMPT_CALL_MS, FRAME_CALL_MS, AUDIO_CALL_MS = (1.2, 0.11), (0.3, 0.003), (0.3, 0.007)
"""Milliseconds that calls of the backends take the host while hundreds of listeners run in other threads, traced, and
milliseconds more for each stream.
"""
TAKING_MS = 0.015
"""For a chunk, by its listener in another thread, which the engine's thread waits for."""
CHECKING_MS = 0.08
"""For a request, as above."""


@dataclass
class Time:
    """The clock, and when the device will have done all it was asked for."""

    now: float = 0.0
    free_at: float = 0.0
    mishaps: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    host: float = 0.0
    """How many times as long as here the engine's own Python takes; 0: none, and nothing depends on this machine."""
    _measured_at: float | None = None
    """This thread's processor time when the engine last went on; ``None`` while it does not."""

    def read(self) -> float:
        """Return the time, the engine's own until now included."""
        if self.host and self._measured_at is not None:
            at = thread_time()
            self.now += self.host * (at - self._measured_at)
            self._measured_at = at
        return self.now

    @contextmanager
    def engine(self) -> Iterator[None]:
        """The engine's own Python runs meanwhile."""
        self._measured_at = thread_time()
        yield
        self.read()
        self._measured_at = None

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Something else than the engine's own Python runs meanwhile, and says itself how long it takes."""
        self.read()
        engine, self._measured_at = self._measured_at is not None, None
        try:
            yield
        finally:
            self._measured_at = thread_time() if engine else None

    def work(self, milliseconds: float) -> None:
        """The host is busy, sometimes for longer than usual."""
        self.now += milliseconds * 1e-3 * (1.2 + 0.6 * self.mishaps.exponential())

    def call(self, milliseconds: tuple[float, float], size: int) -> None:
        """The host is busy with a call for so many streams."""
        once, each = milliseconds
        self.work(once + each * size)

    def launch(self, size: int, costs: Costs) -> float:
        """When that will be done."""
        self.free_at = max(self.now, self.free_at) + float(np.interp(size, *costs)) * 1e-3
        return self.free_at

    def wait(self, moment: float) -> None:
        self.now = max(self.now, moment)


class DeviceTalker(FakeTalker):
    time: Time

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        with self.time.outside():
            self.time.call(PROMPT_CALL_MS, len(requests))
            self.time.launch(sum(len(request.embeds) for request in requests), PROMPTS)
        first, self.issued = self.issued + 1, self.issued + len(requests)
        return [StreamHandle(handle) for handle in range(first, self.issued + 1)]

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:  # type: ignore[override]
        with self.time.outside():
            self.time.call(FRAME_CALL_MS, len(steps))
            done_at = self.time.launch(len(steps), FRAMES)
        codes = tuple(range(self.config.num_code_groups))

        def finish() -> list[Frame]:
            with self.time.outside():
                self.time.wait(done_at)
                self.time.work(0.15 + 0.002 * len(steps))
                return [Frame(step.stream, codes) for step in steps]

        return finish

    def release(self, stream: StreamHandle) -> None:
        pass


class DeviceCodec(FakeCodec):
    time: Time

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        with self.time.outside():
            self.time.call(AUDIO_CALL_MS, len(states))
            self.time.launch(sum(map(len, codes)), AUDIO)
            return [torch.zeros(len(frames) * FRAME_SAMPLES) for frames in codes]


@dataclass
class Device(Fakes):
    """The plug-in with both."""

    time: Time = field(default_factory=Time)
    talker: type[FakeTalker] = DeviceTalker
    codec: type[FakeCodec] = DeviceCodec
    """Both get the ``time``."""

    def _talker(self, name: str) -> Callable[[Checkpoint, LoadContext], FakeTalker]:
        return lambda checkpoint, context: self._timed(self.talker(checkpoint, self.talkers[name]))

    def _codec(self, name: str) -> Callable[[Checkpoint, LoadContext], FakeCodec]:
        return lambda checkpoint, context: self._timed(self.codec(self.codecs[name]))

    def _timed(self, loaded: LoadedT) -> LoadedT:
        vars(loaded)["time"] = self.time
        return loaded

    def state(self, settings: Settings, checkpoint: Checkpoint) -> WorkerState:
        """Return the state of a worker that has done nothing yet."""
        place = self.registry, settings, checkpoint, torch.device("cpu")
        return WorkerState(talker_role(*place), codec_role(*place), self.time.read)

    def downloads(self) -> type[Download]:
        """Return the class that brings chunks to the host."""
        time = self.time

        class LateDownload(Download):
            def __init__(self, chunks: list[Tensor]) -> None:
                super().__init__(chunks)
                self._done_at = time.free_at

            @property
            def under_way(self) -> bool:
                return time.now < self._done_at

            def wait(self) -> Samples:
                with time.outside():
                    time.wait(self._done_at)
                    time.work(0.05 + 0.005 * len(self.sizes))
                    return super().wait()

        return LateDownload


class Listener(ChunkQueue):
    """Plays from the first chunk on, and takes each at once."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.asked_at, self.first_s, self.frames, self.gaps_s = time.now, 0.0, 0, list[float]()
        self._time, self._dry_at = time, 0.0

    def put(self, chunk: Chunk) -> list[Waiter]:
        now = self._time.read()
        with self._time.outside():
            self._time.work(TAKING_MS)
        if not self._dry_at:
            self.first_s, self._dry_at = now - self.asked_at, now
        if now > self._dry_at:
            self.gaps_s.append(now - self._dry_at)
            self._dry_at = now
        self._dry_at += chunk.frames * FRAME_SECONDS
        self.frames += chunk.frames
        return []


class Arrivals:
    """The worker's queue of commands, in which each lies from its moment on."""

    def __init__(self, time: Time, commands: Iterable[tuple[float, Callable[[], Command]]], until_s: float) -> None:
        self.until_s, self.time = until_s, time
        coming = [(0.0, lambda: Warmup(Future())), *commands]
        self._coming = [(moment, place, make) for place, (moment, make) in enumerate(coming)]
        heapify(self._coming)

    def get(self, block: bool = True, timeout: float | None = None) -> Command:
        """Return the next command like a queue, but wait no longer than ``until_s``."""
        with self.time.outside():
            return self._get(block, timeout)

    def _get(self, block: bool, timeout: float | None) -> Command:
        until = self.time.now
        if block:
            until = self.until_s if timeout is None else min(self.until_s, until + timeout)
        if not self._coming or self._coming[0][0] > until:
            self.time.wait(until)
            raise queue.Empty
        moment, _, make = heappop(self._coming)
        self.time.wait(moment)
        self.time.work(0.01)
        return make()

    def get_nowait(self) -> Command:
        return self.get(block=False)


def work(
    state: WorkerState,
    settings: Settings,
    checkpoint: Checkpoint,
    arrivals: Arrivals,
) -> None:
    """Let a worker do what arrives, warmed up, until nothing more may arrive."""
    commands = CommandQueue()
    commands.queue = arrivals  # type: ignore[assignment]
    own = WorkerSettings(PromptBuilder(checkpoint, torch.device("cpu"), torch.float32), settings, threads=1)
    worker = Worker(state, commands, CallRegister(state.clock), own)
    with torch.no_grad(), arrivals.time.engine():
        while state.clock() < arrivals.until_s:
            worker._turn()
    assert state.failure is None, state.failure


def listen(
    checkpoint: Checkpoint,
    arrivals: Iterable[float],
    *,
    until_s: float,
    speech_s: float,
    max_ahead_s: float | None,
    patch: pytest.MonkeyPatch,
    host: float = 0.0,
    seed: int = 7,
    owner_of: Callable[[int], str] = lambda place: "",
) -> list[Listener]:
    """Return all listeners, in order: at each of these moments one asks for ``speech_s`` seconds of speech. Ends when
    nothing more happens, or after ``until_s``. ``host`` is that of :class:`Time`, ``seed`` that of its mishaps.
    ``owner_of`` returns the owner of the listener in this place.
    """
    talkers = {"device": Behaviour(capabilities=replace(CAPABILITIES, max_streams=MOST_STREAMS))}
    device = Device(talkers=talkers)
    device.time = Time(mishaps=np.random.default_rng(seed), host=host)
    time, settings = device.time, Settings(max_streams=MOST_STREAMS, max_waiting=MOST_STREAMS, max_wait_s=None)
    patch.setattr("megatalker.engine.codec_stage.Download", device.downloads())
    checker = RequestChecker(settings, checkpoint)
    options = SpeechOptions(seed=1, max_frames=round(speech_s / FRAME_SECONDS), max_ahead_s=max_ahead_s)
    listeners: list[Listener] = []

    def submit() -> Command:
        time.work(CHECKING_MS)
        request, text = checker.check(TEXT, options, TalkerLimits("device", seeded_sampling=True, max_positions=4096))
        listeners.append(Listener(time))
        chunking = ChunkPolicy(chunk_limit(settings.max_chunk_frames, request.max_ahead_s))
        progress, owner = Progress(1, time.now, "", ""), owner_of(len(listeners) - 1)
        return Submit(Utterance(request, text, progress, listeners[-1], chunking, runaway=None, owner=owner))

    coming = Arrivals(time, ((moment, submit) for moment in arrivals), until_s)
    work(device.state(settings, checkpoint), settings, checkpoint, coming)
    return listeners
