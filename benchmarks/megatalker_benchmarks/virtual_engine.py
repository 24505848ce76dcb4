"""An engine's worker in virtual time, in one thread: callers come at their moments, and their listeners take each chunk
at once. A second of 500 streams takes about a second of processor time.
"""

import math
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.admission import AdmissionLimits, expected_wait
from megatalker.engine.backend_role import codec_role, talker_role
from megatalker.engine.commands import Cancel, Command, CommandQueue, Wake, Warmup
from megatalker.engine.guarded_calls import CallRegister
from megatalker.engine.speech.chunks import ChunkPolicy, ChunkQueue, Progress, Waiter, chunk_limit
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.outputs import Chunk, FinishReason
from megatalker.engine.speech.request import RequestChecker, TalkerLimits
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.engine.worker import Worker, WorkerSettings
from megatalker.errors import CapacityError
from megatalker.plugins import BackendRegistry
from megatalker.prompt import PromptBuilder
from megatalker.settings import Settings
from megatalker_benchmarks.virtual_machine import VirtualBackends, VirtualClock

TEXT = "The quick brown fox jumps over the lazy dog again and again."
LIMITS = TalkerLimits("idle", seeded_sampling=True, max_positions=4096)


@dataclass(frozen=True, kw_only=True)
class VirtualCaller:
    """One who asks for speech, and plays it from its first chunk on."""

    at: float
    speech_s: float
    """How long the talker speaks, unless the listener leaves before."""
    text: str = TEXT
    owner: str = ""
    max_ahead_s: float | None = None
    patience_s: float = math.inf
    """It leaves if it has heard nothing for this long."""
    comes_back: bool = False
    """A caller who was refused asks again at the time it was told."""


@dataclass
class Told:
    """Something that a caller was told about its wait, and when."""

    at: float
    wait_s: float | None
    refused: bool


class Listener(ChunkQueue):
    """Takes each chunk at once."""

    def __init__(self, caller: VirtualCaller, clock: VirtualClock) -> None:
        super().__init__()
        self.caller, self.told, self.asked_at = caller, list[Told](), clock.now
        self.first_s, self.heard_at, self.frames, self.gaps_s = 0.0, 0.0, 0, list[float]()
        self.on_refusal = list[CapacityError]().append
        self._clock, self._dry_at = clock, 0.0

    def again(self) -> Self:
        """Return it as the queue of the first request, or of another one."""
        if not self.told:
            self.asked_at = self._clock.now
        self.reason = self.error = None
        return self

    def put(self, chunk: Chunk) -> list[Waiter]:
        """Play it: there is a gap where playback had nothing more."""
        now = self._clock.now
        self._clock.work(self._clock.machine.taking_ms)
        if not self._dry_at:
            self.first_s, self._dry_at = now - self.asked_at, now
        if now > self._dry_at:
            self.gaps_s.append(now - self._dry_at)
            self._dry_at = now
        self._dry_at += chunk.frames * FRAME_SECONDS
        self.frames, self.heard_at = self.frames + chunk.frames, now
        return []

    def finish(self, reason: FinishReason, error: Exception | None = None) -> bool:
        """The engine has ended the stream."""
        if isinstance(error, CapacityError):
            self.on_refusal(error)
        return super().finish(reason, error)


class Arrivals:
    """The worker's queue of commands, in which each lies from its moment on."""

    def __init__(self, clock: VirtualClock) -> None:
        self.until_s, self._clock, self._places = 0.0, clock, count()
        self._coming = list[tuple[float, int, Callable[[], Command]]]()

    def add(self, moment: float, make: Callable[[], Command]) -> None:
        """Let a command come at this moment."""
        heappush(self._coming, (moment, next(self._places), make))

    def put(self, command: Command) -> None:
        """Let a command come now."""
        self.add(self._clock.now, lambda: command)

    def get(self, block: bool = True, timeout: float | None = None) -> Command:
        """Return the next command like a queue, but wait no longer than ``until_s``."""
        until = self._clock.now
        if block:
            until = self.until_s if timeout is None else min(self.until_s, until + timeout)
        if not self._coming or self._coming[0][0] > until:
            self._clock.wait(until)
            raise queue.Empty
        moment, _, make = heappop(self._coming)
        self._clock.wait(moment)
        self._clock.work(0.01)
        return make()

    def get_nowait(self) -> Command:
        """Return the next command that is there."""
        return self.get(block=False)


class VirtualEngine:
    """An engine's worker, its commands and its listeners.

    Args:
        checkpoint: its shapes decide how many rows a prompt has.
        clock: the machine's.
        settings: the engine's; by default none but ``max_streams`` limits anything.
        segment_frames: frames of each segment of a text after its first.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        clock: VirtualClock,
        settings: Settings | None = None,
        segment_frames: float = math.inf,
    ) -> None:
        self.clock, self.commands, self.arrivals = clock, CommandQueue(), Arrivals(clock)
        self.settings = settings or Settings(max_streams=1024, max_waiting=4096, max_open=4096)
        self.commands.queue = self.arrivals  # type: ignore[assignment]
        self._checker = RequestChecker(self.settings, checkpoint)
        self._backends = VirtualBackends(clock, segment_frames=segment_frames)
        registry = BackendRegistry([("virtual", self._backends)])
        place = registry, self.settings, checkpoint, torch.device("cpu")
        self.state = WorkerState(talker_role(*place), codec_role(*place), clock.read)
        own = WorkerSettings(PromptBuilder(checkpoint, torch.device("cpu"), torch.float32), self.settings, threads=1)
        self._worker = Worker(self.state, self.commands, CallRegister(clock.read), own)
        self.arrivals.put(Warmup(Future()))

    @property
    def limits(self) -> AdmissionLimits:
        """The engine's."""
        return AdmissionLimits.of(self.settings, None, self.state.costs)

    def run(self, until_s: float) -> None:
        """Let the worker do what arrives, until nothing more happens or until this moment."""
        self.arrivals.until_s = until_s
        with patch("megatalker.engine.codec_stage.Download", self._backends.downloads()), torch.no_grad():
            while self.clock.now < until_s:
                self._worker._turn()
        assert self.state.failure is None, self.state.failure

    def listen(self, callers: Iterable[VirtualCaller], until_s: float) -> list[Listener]:
        """Return the listeners of these callers, in their order, when nothing more happens or at this moment."""
        listeners = [Listener(caller, self.clock) for caller in callers]
        for listener in listeners:
            self.arrivals.add(listener.caller.at, partial(self._ask, listener))
        self.run(until_s)
        return listeners

    def request(
        self, text: str | None, chunks: ChunkQueue, speech_s: float = math.inf, owner: str = "", **options: Any
    ) -> Utterance:
        """Return a request that was checked, and will be spoken for this long."""
        clock, settings, seed = self.clock, self.settings, len(self._backends.lengths)
        self._backends.lengths.append(speech_s / FRAME_SECONDS)
        clock.work(clock.machine.checking_ms)
        request, segments = self._checker.check(text, SpeechOptions(seed=seed, **options), LIMITS)
        chunking = ChunkPolicy(chunk_limit(settings.max_chunk_frames, request.max_ahead_s))
        progress = Progress(seed, clock.now, "", "")
        utterance = Utterance(request, segments, progress, chunks, chunking, None, short_speech="believe", owner=owner)
        utterance.update(clock.now)
        return utterance

    def submit(self, utterance: Utterance) -> None:
        """Let it in, or raise ``CapacityError``."""
        self.commands.submit(utterance, self.limits, self.state.throughput)

    def _ask(self, listener: Listener) -> Command:
        clock, caller = self.clock, listener.caller
        utterance = self.request(
            caller.text, listener.again(), caller.speech_s, caller.owner, max_ahead_s=caller.max_ahead_s
        )
        throughput = self.state.throughput
        wait = expected_wait(self.commands.unfinished(), utterance, self.limits, throughput, clock.now)

        def refused(error: CapacityError) -> None:
            listener.told.append(Told(clock.now, error.retry_after_s, refused=True))
            if caller.comes_back and error.retry_after_s is not None:
                self.arrivals.add(clock.now + error.retry_after_s, partial(self._ask, listener))

        listener.on_refusal = refused
        try:
            self.submit(utterance)
        except CapacityError as error:
            refused(error)
            return Wake()
        listener.told.append(Told(clock.now, wait.seconds, refused=False))
        if caller.patience_s < math.inf:
            self.arrivals.add(clock.now + caller.patience_s, lambda: Wake() if listener.first_s else Cancel(utterance))
        return Wake()


def at_once(count: int, at: float = 1.0, apart_s: float = 0.00015, **options: Any) -> list[VirtualCaller]:
    """Return callers at one moment; checking one request takes its caller a little."""
    return [VirtualCaller(at=at + place * apart_s, **options) for place in range(count)]


def poisson(rate: float, seconds: float, seed: int = 1, **options: Any) -> list[VirtualCaller]:
    """Return callers at random moments."""
    apart_s = np.random.default_rng(seed).exponential(1 / rate, round(2 * rate * seconds) + 20)
    return [VirtualCaller(at=float(at), **options) for at in np.cumsum(apart_s) if at < seconds]
