"""The engines of this process: each is opened once, off the event loop, and shared by all sessions that want it."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

import megatalker
from megatalker.engine.speech.protocols import Speech, SpeechEngine
from megatalker.errors import (
    BackendFaultError,
    BackendNotFoundError,
    BackendUnavailableError,
    CheckpointError,
    EngineClosedError,
    InvalidRequestError,
    PluginError,
    SettingsError,
    UnsupportedError,
)
from megatalker.serving.background import start_thread

IMPOSSIBLE = (
    BackendNotFoundError,
    BackendUnavailableError,
    CheckpointError,
    InvalidRequestError,
    PluginError,
    SettingsError,
    UnsupportedError,
)
"""Errors after which the same request, or an engine of the same settings, can never work."""
GONE = (BackendFaultError, EngineClosedError)
"""Errors after which no further request can succeed on the engine that raised them."""


logger = logging.getLogger(__name__)

PER_REQUEST = {"voice", "language", "max_ahead_s", "agent"}
"""Settings that each request brings itself: engines that differ in nothing else are the same engine."""
SUBMITTERS = 4
"""Threads per engine that check requests; a request takes about a millisecond, or one round trip to a server."""

WarmUp = Callable[[SpeechEngine], None]


@dataclass(eq=False)
class _Shared:
    """One engine, from the first lease on it until the last one was given back."""

    key: str
    loaded: "Future[SpeechEngine]" = field(default_factory=Future)
    warm: "Future[None]" = field(default_factory=Future)
    leases: int = 0
    submitters: ThreadPoolExecutor = field(default_factory=lambda: _submitters())


class EnginePool:
    """Opens engines, hands out leases on them, and closes an engine when its last lease is given back.

    Thread-safe; sessions may live in different event loops.
    """

    def __init__(self, open_engine: Callable[[megatalker.Settings], SpeechEngine] | None = None) -> None:
        """``open_engine``: blocks until the engine is loaded and warm; by default a :class:`megatalker.Engine`, or one
        in a process of its own (setting ``engine_process``), which warms up once it is loaded: for the first stream at
        once and for others in the background, as a server's does where the setting ``warmup`` says nothing else.
        """
        self._open, self._warm_up = (_open, _warm_up) if open_engine is None else (open_engine, _is_warm)
        self._lock = threading.Lock()
        self._engines: dict[str, _Shared] = {}

    async def lease(self, settings: megatalker.Settings) -> "Lease":
        """Return a lease on the engine for these settings, loaded and warm.

        A cancelled call leaves no trace: an engine that nobody else wants is closed once it has loaded.

        Raises:
            MegatalkerError: as ``megatalker.Engine.open`` and ``warmup``; the next call tries again.
        """
        lease = self.begin(settings)
        try:
            await lease.warm()
        except BaseException:
            lease.leave()
            raise
        return lease

    def begin(self, settings: megatalker.Settings) -> "Lease":
        """Return a lease at once, on an engine that may still be loading; needs no event loop."""
        return self._begin(_key(settings), lambda: self._open(settings), self._warm_up)

    def begin_server(self, url: str) -> "Lease":
        """Return a lease on a client of the server at ``url``, which all sessions that use this server share."""
        return self._begin(url, lambda: _connect(url), _is_warm)

    def holds(self, settings: megatalker.Settings) -> bool:
        """The engine for these settings is loaded and will be shared at once."""
        with self._lock:
            shared = self._engines.get(_key(settings))
            return shared is not None and shared.warm.done()

    def _begin(self, key: str, load: Callable[[], SpeechEngine], warm_up: WarmUp) -> "Lease":
        shared = self._join(key, load, warm_up)
        return Lease(
            shared.loaded, shared.warm, shared.submitters, lambda: self._leave(shared), lambda: self._forget(shared)
        )

    @staticmethod
    def borrow(engine: SpeechEngine) -> "Lease":
        """Return a lease on an engine that the caller owns and closes: giving the lease back leaves it open."""
        submitters, loaded, warm = _submitters(), Future[SpeechEngine](), _done()
        loaded.set_result(engine)

        def leave() -> Future[None]:
            submitters.shutdown(wait=False)
            return _done()

        return Lease(loaded, warm, submitters, leave, lambda: None)

    def _join(self, key: str, load: Callable[[], SpeechEngine], warm_up: WarmUp) -> _Shared:
        with self._lock:
            shared = self._engines.get(key)
            if shared is None:
                shared = self._engines[key] = _Shared(key)
                for future in (shared.loaded, shared.warm):
                    future.set_running_or_notify_cancel()  # a session that gives up must not cancel it for others
                start_thread(partial(self._load, shared, load, warm_up), "megatalker-load")
            shared.leases += 1
            return shared

    def _load(self, shared: _Shared, load: Callable[[], SpeechEngine], warm_up: WarmUp) -> None:
        try:
            engine = load()
            shared.loaded.set_result(engine)
            warm_up(engine)
        except BaseException as error:
            self._forget(shared)
            logger.error("an engine cannot be loaded: %s: %s", type(error).__name__, error)  # if nobody waits for it
            if not isinstance(error, Exception):  # an exit of a plug-in would end every session that waits
                error = BackendFaultError(f"the engine cannot be loaded: {type(error).__name__}: {error}")
            shared.warm.set_exception(error)  # before loaded: who sees that fail finds the lease failed
            if not shared.loaded.done():
                shared.loaded.set_exception(error)
        else:
            shared.warm.set_result(None)

    def _forget(self, shared: _Shared) -> None:
        """Open another engine for the next session that asks for these settings."""
        with self._lock:
            if self._engines.get(shared.key) is shared:
                del self._engines[shared.key]

    def _leave(self, shared: _Shared) -> "Future[None]":
        """Count one session less; the future is done when everything that had to be closed is closed."""
        with self._lock:
            shared.leases -= 1
            last = shared.leases == 0
        if not last:
            return _done()
        self._forget(shared)
        closed: Future[None] = Future()
        closed.set_running_or_notify_cancel()
        start_thread(partial(_close, shared, closed), "megatalker-close")
        return closed


class Lease:
    """One session's share of an engine. Give it back with :meth:`release`, or use it in an ``async with`` block."""

    def __init__(
        self,
        loading: "Future[SpeechEngine]",
        warming: "Future[None]",
        submitters: ThreadPoolExecutor,
        leave: Callable[[], "Future[None]"],
        forget: Callable[[], None],
    ) -> None:
        """Made by :class:`EnginePool`."""
        self._loading, self._warming, self._submitters = loading, warming, submitters
        self._leave, self._forget = leave, forget
        self.released = False

    @property
    def engine(self) -> SpeechEngine:
        """The engine, once it is :meth:`loaded`."""
        assert self._loading.done(), "wait for loaded() first"
        return self._loading.result()

    @property
    def failed(self) -> bool:
        """The engine could not be loaded or warmed up; the next request for it begins again."""
        return self._warming.done() and self._warming.exception() is not None

    async def loaded(self) -> SpeechEngine:
        """Wait for the engine, which may still warm up: what it is asked to say is said when that is over.

        Raises:
            MegatalkerError: as ``megatalker.Engine.open``, or the server's URL cannot be used.
        """
        return await asyncio.wrap_future(self._loading)

    async def warm(self) -> SpeechEngine:
        """Wait for the engine and its warm-up; raises as :meth:`loaded`, and as ``megatalker.Engine.warmup``."""
        engine = await self.loaded()
        await asyncio.wrap_future(self._warming)
        return engine

    async def speak(self, text: str | None, options: megatalker.SpeechOptions) -> Speech:
        """Call ``engine.speak`` off the event loop, once the engine is loaded. When this call is cancelled, so is the
        speech it asked for.
        """
        engine = await self.loaded()
        submitted = asyncio.get_running_loop().run_in_executor(self._submitters, engine.speak, text, options)
        try:
            return await asyncio.shield(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(_cancel_speech)
            raise

    async def check(self, options: megatalker.SpeechOptions) -> None:
        """Call ``engine.check`` off the event loop, once the engine is loaded."""
        engine = await self.loaded()
        await asyncio.get_running_loop().run_in_executor(self._submitters, engine.check, options)

    def give_up(self) -> None:
        """The engine cannot speak any more: the next request for these settings gets a new one."""
        self._forget()

    def leave(self) -> "Future[None]":
        """Give the engine back; done when it is closed, if this was its last lease. May be called again."""
        if self.released:
            return _done()
        self.released = True
        return self._leave()

    async def release(self) -> None:
        """Give the engine back, and wait until it is closed if this was its last lease."""
        await asyncio.wrap_future(self.leave())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()


def _key(settings: megatalker.Settings) -> str:
    return settings.model_dump_json(exclude=PER_REQUEST)


def _open(settings: megatalker.Settings) -> SpeechEngine:
    if settings.warmup is None:
        settings = settings.model_copy(update={"warmup": "first"})
    if not settings.engine_process:
        return megatalker.Engine.open(settings)
    from megatalker.serving.processes import ProcessEngine  # which needs pyzmq

    return ProcessEngine.open(settings)


def _warm_up(engine: SpeechEngine) -> None:
    engine.warmup()  # type: ignore[attr-defined]  # the pool has opened it, so that it has one


def _is_warm(engine: SpeechEngine) -> None:
    """Do nothing: the engine is warm already."""


def _connect(url: str) -> SpeechEngine:
    from megatalker.serving.client import RemoteEngine

    return RemoteEngine(url)


def _close(shared: _Shared, closed: "Future[None]") -> None:
    try:
        if shared.loaded.exception() is None:  # waits for it: closing an engine that still loads comes after loading
            shared.loaded.result().close()
    finally:
        shared.submitters.shutdown(wait=False)
        closed.set_result(None)


def _submitters() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SUBMITTERS, thread_name_prefix="megatalker-speak")


def _done() -> "Future[None]":
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _cancel_speech(submitted: "asyncio.Future[Speech]") -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()
