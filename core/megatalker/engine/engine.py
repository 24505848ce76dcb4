"""The public face: opens a checkpoint with its backends, takes requests, hands out streams."""

import dataclasses
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from megatalker.checkpoint import Checkpoint
from megatalker.engine.admission import AdmissionLimits, expected_wait
from megatalker.engine.aligned_words import open_paces
from megatalker.engine.backend_role import codec_role, talker_role
from megatalker.engine.commands import Command, CommandQueue, Lend, LocalLink, Wake, Warmup
from megatalker.engine.costs import RunningClock
from megatalker.engine.endings import end_everything
from megatalker.engine.guarded_calls import CallRegister
from megatalker.engine.interpreter import at_exit, end_thread
from megatalker.engine.runaway import RunawayDetector
from megatalker.engine.speech.chunks import ChunkPolicy, ChunkQueue, Progress, chunk_limit
from megatalker.engine.speech.marked_chunks import WatermarkStage
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.outputs import Continuation, EngineMetrics
from megatalker.engine.speech.request import Request, RequestChecker, TalkerLimits
from megatalker.engine.speech.text_segmenter import TextSegmenter
from megatalker.engine.state import WorkerState
from megatalker.engine.stream import SpeechStream, require_process
from megatalker.engine.utterance import Utterance
from megatalker.engine.watchdog import Watchdog, look_period_s
from megatalker.engine.worker import WorkerSettings
from megatalker.errors import EngineClosedError, MegatalkerError
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import CheckedCodec, CheckedTalker
from megatalker.plugins.device import resolve_device, resolve_dtype, resolve_threads
from megatalker.prompt import PromptBuilder
from megatalker.settings import Settings

CLOSE_TIMEOUT_S = 10.0  # not tuned: a bound of closing
"""How long closing waits for a backend call in progress before it is abandoned."""
LEAVE_PATIENCE_S = 0.5  # not tuned: a bound of leaving
"""How long a backend call may go on when Python is left, before it is interrupted: most end, and backends are freed."""


class Engine:
    """Text in, streaming speech out. Thread-safe. Open one with :meth:`open`, close it or use it in a ``with`` block.

    One engine holds one checkpoint in one talker backend and one codec, and speaks many utterances at the same time.
    """

    def __init__(self, settings: Settings, checkpoint: Checkpoint, registry: BackendRegistry) -> None:
        """Load the backends; raises as :meth:`open`, which reads settings and checkpoint."""
        self.settings = settings
        self.checkpoint = checkpoint
        self.device = resolve_device(settings.device)
        self.dtype = resolve_dtype(settings.dtype, self.device)
        self._watermark = WatermarkStage(settings.watermark)
        place = registry, settings, checkpoint, self.device
        self._process = os.getpid()
        self._commands = CommandQueue()
        self._state = WorkerState(talker_role(*place), codec_role(*place), time.monotonic)
        self._requests = RequestChecker(settings, checkpoint)
        self._paces = open_paces(settings.aligner, settings.language)
        own = WorkerSettings(
            PromptBuilder(checkpoint, self.device, self.dtype),
            settings,
            resolve_threads(settings.threads, checkpoint, self.device),
        )
        self._register = CallRegister(time.monotonic, 2 * look_period_s(settings.step_deadline_s))
        watchdog = Watchdog(self._state, self._commands, self._register, own)
        self._closer = weakref.finalize(
            self, _close, self._state, self._commands, watchdog, self._register.clock, self._process
        )
        at_exit(partial(_leave, weakref.ref(watchdog), self._commands))
        watchdog.worker.start()
        watchdog.start()
        try:
            self._state.opened.result()
        except BaseException:
            self._closer()
            raise

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        checkpoint: Checkpoint | str | Path | None = None,
        registry: BackendRegistry | None = None,
        **overrides: Any,
    ) -> "Engine":
        """Open a checkpoint and load its backends; warm-up is left to :meth:`warmup` or to the first request.

        Args:
            settings: by default read from the environment and ``megatalker.toml``.
            checkpoint: already open, or what to open in place of ``settings.checkpoint``.
            registry: by default the installed plug-ins.
            **overrides: single settings, such as ``backend="compiled"``.

        Raises:
            SettingsError: an unknown setting or an impossible value.
            CheckpointError: the checkpoint cannot be opened.
            BackendNotFoundError, BackendUnavailableError: a backend asked for by name is not installed, or cannot be
                loaded here; or ``auto`` finds none.
            UnsupportedError: the watermark or the aligner needs a package or weights that are missing.
        """
        if isinstance(checkpoint, str | Path):
            overrides["checkpoint"], checkpoint = str(checkpoint), None
        settings = Settings.given(settings, overrides)
        registry = BackendRegistry.installed() if registry is None else registry
        return cls(settings, checkpoint or Checkpoint.open(settings.checkpoint), registry)

    def speak(self, text: str | None, options: SpeechOptions | None = None, **changes: Any) -> SpeechStream:
        """Begin to speak; returns at once.

        Args:
            text: what to say. ``None`` opens a stream for text that is still being written: give it with
                ``stream.feed`` and end it with ``stream.finish``.
            options: how to say it.
            **changes: single options, such as ``seed=7``, on top of ``options``.

        Raises:
            InvalidRequestError: something about the request can never work; the message says what would.
            CapacityError: too many streams are open or wait already, or this one would have to wait too long;
                ``retry_after_s`` tells when all that come before have been served. The stream raises it where it waited
                in vain.
            BackendFaultError: every backend has failed.
            EngineClosedError: the engine was closed.
            UnsupportedError: this is a forked child of the process that opened the engine; or the backend is greedy
                only, and the request samples.
        """
        return self.speak_for("", text, options, **changes)

    def speak_for(
        self,
        owner: str,
        text: str | None,
        options: SpeechOptions | None = None,
        *,
        after: Continuation | None = None,
        **changes: Any,
    ) -> SpeechStream:
        """Begin to speak like :meth:`speak`, for one of several owners, such as a connection or an API key.

        Owners share the slots; ``settings.max_streams_per_owner`` bounds each. :meth:`speak` is for the owner ``""``.

        Args:
            owner: see above.
            text: as for :meth:`speak`.
            options: as for :meth:`speak`. A continued utterance has the seed of the first engine's stream.
            after: another engine has said this much of the same text with the same options, and stopped: the stream
                begins with the frame that follows. Text that was fed must be fed again from its beginning.
            **changes: as for :meth:`speak`.
        """
        self._require_serving()
        asked = SpeechOptions.of(options, changes)
        request, segmenter = self._requests.check(text, asked, self.limits, after)
        utterance = self.begin(owner, request, segmenter, after=after)
        utterance.progress.text_chars = len(text or "")
        checker, words = self._requests.text_checker(text, asked), self._paces.clock(asked, segmenter.whole)
        link = LocalLink(utterance, self._commands)
        return SpeechStream(
            link,
            checker,
            keep_alive=self,
            words=words,
            after=after,
            watermark=self._watermark,
            shaped=self._requests.takes_prosody(asked),
        )

    def begin(
        self,
        owner: str,
        request: Request,
        text: TextSegmenter,
        *,
        after: Continuation | None = None,
        chunks: Callable[[Progress], ChunkQueue] | None = None,
        distrusted: bool = False,
    ) -> Utterance:
        """Begin a request that was checked, with its text in segments; raises as :meth:`speak`.

        Args:
            owner: as for :meth:`speak_for`.
            request: from a :class:`~megatalker.engine.speech.request.RequestChecker`, with the text.
            text: see ``request``.
            after: as for :meth:`speak_for`.
            chunks: makes what takes the audio; by default a queue for a consumer in this process.
            distrusted: the engine before died in a call for it: it goes in calls of its own until it has passed one.
        """
        self._require_serving()
        utterance = self._utterance(request, text, owner, chunks)
        utterance.distrusted = distrusted
        if after is not None:
            utterance.go_on_after(after, utterance.progress.requested_at)
        utterance.update(utterance.progress.requested_at)
        self._commands.submit(utterance, self._admission, self._state.throughput)
        return utterance

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        """Whether text that arrives bit by bit could be spoken with these options; nothing is spoken.

        Raises:
            MegatalkerError: as :meth:`speak`, except for ``CapacityError``.
        """
        self._require_serving()
        self._requests.check(None, SpeechOptions.of(options, changes), self.limits)

    def warmup(self) -> None:
        """Compile, capture and touch everything the first request would otherwise wait for. Blocks; may take minutes.

        Raises:
            BackendFaultError: every backend has failed.
            EngineClosedError: the engine was closed.
        """
        done: Future[None] = Future()
        self._put(Warmup(done))
        done.result()

    @contextmanager
    def borrow_backends(self) -> Iterator[tuple[CheckedTalker, CheckedCodec]]:
        """The loaded talker decoder and codec, for measurements. Requests wait until they are given back.

        Raises:
            CapacityError: streams are running.
            BackendFaultError, EngineClosedError: as :meth:`warmup`.
        """
        lent: Future[tuple[CheckedTalker, CheckedCodec]] = Future()
        returned = threading.Event()
        self._put(Lend(lent, returned))
        try:
            yield lent.result()
        finally:
            returned.set()

    def metrics(self) -> EngineMetrics:
        """Counters since the engine was opened."""
        state, commands = self._state, self._commands
        opened = commands.unfinished()
        without_row = [utterance for utterance in opened if not utterance.admitted]
        idle = sum(utterance.idle_since is not None for utterance in without_row)
        roles, talker = (state.talker, state.codec), state.talker.loaded
        sustainable = state.costs.proven_streams
        faulty = {f"{role.kind} {name}": why for role in roles for name, why in role.faulty.items()}
        return EngineMetrics(
            **dataclasses.asdict(state.counters),
            streams=commands.submitted,
            tokens=state.counters.frames * self.checkpoint.config.num_code_groups,
            active=len(opened) - len(without_row),
            waiting=len(without_row) - idle,
            sustainable=None if sustainable == math.inf else int(sustainable),
            idle=idle,
            backend=self.backend,
            codec=self.codec,
            faulty=faulty,
            preparing=None if talker is None else talker.preparing,
            unprepared=None if talker is None else talker.unprepared,
        )

    def post(self, command: Command) -> None:
        """Give the worker a command that may come at any time, such as more text of an utterance from :meth:`begin`."""
        self._commands.queue.put(command)

    def watch_calls(self, on_call: Callable[[Sequence[Utterance]], None]) -> None:
        """Call ``on_call`` with the utterances of each backend call before it, and with none after it."""
        self._register.on_call = on_call

    @property
    def expected_wait_s(self) -> float | None:
        """How long a request that comes now waits for a slot; ``None`` while that is unknown."""
        return expected_wait(
            self._commands.unfinished(), None, self._admission, self._state.throughput, self._state.clock()
        ).seconds

    @property
    def backend(self) -> str:
        """Name of the talker backend in use."""
        return self._state.talker.last

    @property
    def codec(self) -> str:
        """Name of the codec in use."""
        return self._state.codec.last

    @property
    def failure(self) -> MegatalkerError | None:
        """Why every request is refused: the engine was closed, or no backend is left. ``None`` while it serves."""
        if self._commands.closing:
            return EngineClosedError("this engine is closed; open a new one")
        return self._state.failure

    def close(self) -> None:
        """End all streams with ``EngineClosedError`` and free the backends. May be called again."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def limits(self) -> TalkerLimits:
        """Limits that the talker backend in use sets to a request."""
        talker = self._state.talker.instance
        return TalkerLimits(self.backend, talker.capabilities.seeded_sampling, talker.max_positions)

    @property
    def _admission(self) -> AdmissionLimits:
        state = self._state
        return AdmissionLimits.of(self.settings, state.talker.instance.max_streams, state.costs)

    def _require_serving(self) -> None:
        require_process(self._process)
        failure = self.failure
        if failure is not None:
            raise failure

    def _put(self, command: Command) -> None:
        self._require_serving()
        self._commands.put(command)

    def _utterance(
        self, request: Request, segmenter: TextSegmenter, owner: str, chunks: Callable[[Progress], ChunkQueue] | None
    ) -> Utterance:
        settings = self.settings
        progress = Progress(request.sampling.seed, time.monotonic(), self.backend, self.codec)
        wake = partial(self._commands.queue.put, Wake())
        return Utterance(
            request=request,
            text=segmenter,
            progress=progress,
            chunks=ChunkQueue(settings.max_untaken_s, wake) if chunks is None else chunks(progress),
            chunking=ChunkPolicy(chunk_limit(settings.max_chunk_frames, request.max_ahead_s)),
            runaway=RunawayDetector() if settings.runaway_guard else None,
            short_speech=settings.short_speech,
            owner=owner,
            paused_before_s=self._register.clock.paused_s,
        )


def _leave(watchdog: "weakref.ref[Watchdog]", commands: CommandQueue) -> None:
    """Python is being left. An engine that is still open is closed; one that was closed may still be in a call."""
    watched = watchdog()
    if watched is not None and watched.worker.is_alive():
        commands.close()
        watched.worker.join(LEAVE_PATIENCE_S)
        watched.stop()
        end_thread(watched.worker)


def _close(state: WorkerState, commands: CommandQueue, watchdog: Watchdog, clock: RunningClock, process: int) -> None:
    if process != os.getpid():  # a forked child has none of the threads
        return
    commands.close()
    if threading.current_thread() in (watchdog.worker, watchdog):  # a collected engine: the worker ends by itself
        watchdog.stop()
        return
    deadline = clock() + CLOSE_TIMEOUT_S
    while (worker := watchdog.worker).is_alive() and clock() < deadline:
        worker.join(0.05)  # the watchdog may put another worker in its place meanwhile
    watchdog.stop()
    watchdog.join(CLOSE_TIMEOUT_S)
    if worker.is_alive():
        watchdog.abandon_worker()
    end_everything(state, commands, EngineClosedError("the engine was closed while this request was running"))
