"""The public face: opens a checkpoint with its backends, takes requests, hands out streams."""

import dataclasses
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.engine.board import Board
from megatalker.engine.commands import Close, Command, Lend, Look, Submit, Warmup
from megatalker.engine.ending import end_everything
from megatalker.engine.facts import EngineMetrics
from megatalker.engine.lineup import codec_slot, talker_slot
from megatalker.engine.requests import RequestDesk, TextIntake, Wishes
from megatalker.engine.stream import SpeechStream
from megatalker.engine.watchdog import Watchdog
from megatalker.engine.worker import Rules
from megatalker.errors import CapacityError, EngineClosedError, MegatalkerError
from megatalker.interfaces import TalkerCapabilities
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import CheckedCodec, CheckedTalker
from megatalker.plugins.device import resolve_device, resolve_dtype
from megatalker.prompt import Layout, PromptBuilder
from megatalker.sampling import SamplingParams
from megatalker.settings import Settings
from megatalker.voices import Voice

CLOSE_TIMEOUT_S = 10.0
"""How long closing waits for a backend call in progress before it is abandoned."""


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
        place = registry, settings, checkpoint, self.device
        self._board = Board(talker_slot(*place), codec_slot(*place), time.monotonic)
        builder = PromptBuilder(checkpoint, self.device, self.dtype)
        checker = _checker(builder, checkpoint, self.device)
        self._desk = RequestDesk(settings, checkpoint, checker, partial(self._board.commands.put, Look()))
        rules = Rules(builder, settings.max_streams, settings.step_deadline_s)
        self._watchdog = Watchdog(self._board, rules)
        self._closer = weakref.finalize(self, _close, self._board, self._watchdog)
        self._watchdog.start_worker()
        self._watchdog.start()
        try:
            self._board.opened.result()
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
        """
        if isinstance(checkpoint, str | Path):
            overrides["checkpoint"], checkpoint = str(checkpoint), None
        if settings is None:
            settings = Settings.read(**overrides)
        elif overrides:
            settings = Settings.read(**(settings.model_dump() | overrides))
        registry = BackendRegistry.installed() if registry is None else registry
        return cls(settings, checkpoint or Checkpoint.open(settings.checkpoint), registry)

    def speak(
        self,
        text: str | None,
        *,
        voice: str | Voice | None = None,
        language: str | None = None,
        instruct: str | None = None,
        sampling: SamplingParams | None = None,
        seed: int | None = None,
        layout: Layout | Literal["auto"] = "auto",
        max_frames: int | None = None,
        max_ahead_s: float | None = None,
        return_codes: bool = False,
    ) -> SpeechStream:
        """Begin to speak; returns at once.

        Args:
            text: what to say. ``None`` opens a stream for text that is still being written: give it with
                ``stream.feed`` and end it with ``stream.finish``.
            voice: a speaker's name, or a :class:`~megatalker.voices.Voice`; by default ``settings.voice``, else the
                checkpoint's own.
            language: by default ``settings.language``.
            instruct: how to speak, or the voice described in words, where the checkpoint takes one.
            sampling: by default the checkpoint's own.
            seed: by default the seed of ``sampling`` where that is given, else a random one; ``stream.seed`` tells it.
            layout: ``upfront`` gives the talker the whole text before speech, ``interleaved`` a piece with each frame.
                ``auto`` is the official choice for the checkpoint when the text is given at once (``interleaved`` for
                ``base``, ``upfront`` for the others), and ``interleaved`` while it is being written.
            max_frames: at most ``settings.max_frames``, the default.
            max_ahead_s: by default ``settings.max_ahead_s``.
            return_codes: chunks carry their codes.

        Raises:
            InvalidRequestError: something about the request can never work; the message says what would.
            CapacityError: too many streams wait already.
            BackendFaultError: every backend has failed.
            EngineClosedError: the engine was closed.
        """
        wishes = Wishes(
            voice=voice,
            language=language,
            instruct=instruct,
            sampling=sampling,
            seed=seed,
            layout=layout,
            max_frames=max_frames,
            max_ahead_s=max_ahead_s,
            return_codes=return_codes,
        )
        self._require_open()
        session = self._desk.accept(text, wishes, self._limits, self.backend, self.codec)
        self._put(Submit(session), requests=1)
        intake = TextIntake(self.checkpoint.tokenizer, self.settings.max_text_chars) if text is None else None
        return SpeechStream(session, self._board.commands, intake, self)

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
        board = self._board
        sessions = tuple(board.sessions)
        active = sum(session.admitted for session in sessions)
        faulty = {
            f"{slot.kind} {name}": why for slot in (board.talker, board.codec) for name, why in slot.faulty.items()
        }
        return EngineMetrics(
            **dataclasses.asdict(board.counters),
            active=active,
            waiting=board.load - active,
            backend=self.backend,
            codec=self.codec,
            faulty=faulty,
        )

    @property
    def backend(self) -> str:
        """Name of the talker backend in use."""
        return self._board.talker.last

    @property
    def codec(self) -> str:
        """Name of the codec in use."""
        return self._board.codec.last

    @property
    def failure(self) -> MegatalkerError | None:
        """Why every request is refused: the engine was closed, or no backend is left. ``None`` while it serves."""
        return EngineClosedError("this engine is closed; open a new one") if self._board.closing else self._board.dead

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
    def _limits(self) -> TalkerCapabilities:
        capabilities = self._board.talker.capabilities
        assert isinstance(capabilities, TalkerCapabilities), "an open engine has had a talker"
        return capabilities

    def _require_open(self) -> None:
        failure = self.failure
        if failure is not None:
            raise failure

    def _put(self, command: Command, requests: int = 0) -> None:
        """Queue a command; the lock makes sure that closing comes after it or is noticed here."""
        board, settings = self._board, self.settings
        rows, limit = settings.max_streams, self._limits.max_streams
        rows = min(rows, limit) if isinstance(limit, int) else rows
        with board.lock:
            self._require_open()
            if requests and board.load >= rows + settings.max_waiting:
                raise CapacityError(
                    f"{rows} streams run and {settings.max_waiting} wait already; try again when one has ended, "
                    "or raise the settings max_streams or max_waiting"
                )
            board.load += requests
            board.counters.streams += requests
            board.commands.put(command)


def _close(board: Board, watchdog: Watchdog) -> None:
    with board.lock:
        board.closing = True
        board.commands.put(Close())
    if threading.current_thread() in (board.worker, watchdog):  # a collected engine: the worker ends by itself
        watchdog.stop()
        return
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    while (worker := board.worker) is not None and worker.is_alive() and time.monotonic() < deadline:
        worker.join(0.05)  # the watchdog may put another worker in its place meanwhile
    watchdog.stop()
    watchdog.join(CLOSE_TIMEOUT_S)
    if worker is not None and worker.is_alive():
        board.abandon()
    end_everything(board, EngineClosedError("the engine was closed while this request was running"))


def _checker(builder: PromptBuilder, checkpoint: Checkpoint, device: torch.device) -> PromptBuilder:
    """Trial prompts are built in callers' threads: on the CPU, so that they never disturb the device."""
    cpu = torch.device("cpu")
    return builder if device == cpu else PromptBuilder(checkpoint, cpu, torch.float32)
