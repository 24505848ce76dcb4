"""``megatalker serve``: the process that starts engines and front ends, keeps them up, and passes signals on.

It has the listening socket, which its front ends share. A *generation* is one state of the settings with the engines
and front ends that have it: SIGHUP begins another one, and the one before serves its connections out.
"""

import itertools
import logging
import queue
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead
from pydantic import SecretStr

from megatalker.checkpoint.hub import download_bar
from megatalker.checkpoint.location import locate
from megatalker.errors import BackendFaultError, MegatalkerError, SettingsError
from megatalker.serving.background import start_thread
from megatalker.serving.processes.child import Child
from megatalker.serving.processes.control import ClientFailed, ClientReady, log_levels, private_folder
from megatalker.serving.processes.supervisor import EngineSupervisor, RestartPlan
from megatalker.serving.server.address import server_url
from megatalker.serving.server.defaults import SHARED_METRICS, engine_devices, front_end_count
from megatalker.serving.server.pid_file import known_as
from megatalker.serving.server.usage import KeyUsage
from megatalker.settings import Settings

logger = logging.getLogger(__name__)

DRAIN, STOP, RETIRE = b"drain\n", b"stop\n", b"retire\n"
"""Orders to front ends: finish what is spoken and begin nothing new; end it; serve your connections out."""
LOOK_S = 0.1
"""Time between two looks at what is due."""
GRACE_S = 5.0
"""A front end that takes this much longer to end than its settings allow is killed."""


@dataclass(frozen=True)
class FrontEndStart:
    """All that a front end is told at its start."""

    number: int
    settings: Settings
    checkpoint: tuple[Path, str]
    """Its folder and name."""
    socket: int
    """The open file on which it takes connections."""
    supervisor: str
    """The address of the engines' supervisor."""
    folder: str
    """Folder of the sockets of the engines' supervisor, where this client's socket comes, too."""
    settings_file: Path | None
    usage: Path
    """SQLite file in which all front ends count what keys use."""
    others_serve: bool
    """There are front ends that serve: this one takes no connection before it is warm."""
    log_levels: dict[str, int]


class ServerState:
    """The socket, the counters and the secret of tokens, which all processes of a server share over all generations."""

    def __init__(self, bound: socket.socket, settings_file: Path | None) -> None:
        self.bound, self.settings_file = bound, settings_file
        self.folder = Path(private_folder())
        self.metrics, self.usage_file = self.folder / "metrics", self.folder / "usage"
        self.metrics.mkdir()
        self.usage = KeyUsage(self.usage_file)
        self.secret = SecretStr(secrets.token_urlsafe(32))
        self.numbers = itertools.count(1)

    def forget_front_end(self, number: int, pid: int) -> None:
        """A front end is over."""
        self.usage.forget_process(number)
        mark_process_dead(pid, str(self.metrics))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Remove the folder."""
        self.usage.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Generation:
    """The engines and front ends of one state of the settings. Used by one thread.

    Args:
        settings: theirs.
        checkpoint: its folder and name.
        shared: with other generations.
        beside: another generation serves.
        post: has the supervisor's thread call something.
    """

    def __init__(
        self,
        settings: Settings,
        checkpoint: tuple[Path, str],
        shared: ServerState,
        beside: bool,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._checkpoint, self._shared, self._beside, self._post = checkpoint, shared, beside, post
        devices = engine_devices(settings)
        self.count = front_end_count(settings, devices)
        own = {
            "token_secret": settings.server.token_secret or shared.secret,
            "max_connections": ceil(settings.server.max_connections / self.count),
        }
        self.settings = settings.model_copy(update={"server": settings.server.model_copy(update=own)})
        self.what = ""
        """Checkpoint, backend and codec, in words."""
        self.failure: MegatalkerError | None = None
        """Why this generation cannot serve."""
        self._ready: set[int] = set()
        self.front_ends: dict[int, Child] = {}
        """By number."""
        self._places: dict[int, int] = {}
        self._plans = [RestartPlan() for _ in range(self.count)]
        self._restart_at: dict[int, float] = {}
        self._over_at: float | None = None
        """When front ends that are to end are killed."""
        self.engines = EngineSupervisor(
            settings,
            checkpoint,
            devices,
            lazy=settings.server.lazy,
            on_client=lambda message: post(partial(self._hear, message)),
        )
        for place in range(self.count):
            self._start(place)

    @property
    def ready(self) -> bool:
        """All front ends serve, or have served."""
        return len(self._ready) >= self.count

    def look(self) -> None:
        """Do what is due."""
        if self.failure is None:
            self.failure = self.engines.failure
        now = time.monotonic()
        for place, at in list(self._restart_at.items()):
            if now >= at:
                del self._restart_at[place]
                self._start(place)
        if self._over_at is not None and now > self._over_at:
            for front_end in self.front_ends.values():
                logger.error("%s does not end and is killed", front_end)
                front_end.kill()
            self._over_at = None

    def tell(self, order: bytes) -> None:
        """Tell all front ends to end in this way."""
        server = self.settings.server
        limit_s = server.shutdown_timeout_s + (0.0 if order == STOP else server.drain_timeout_s) + GRACE_S
        self._over_at = time.monotonic() + limit_s
        self._restart_at.clear()
        for front_end in self.front_ends.values():
            front_end.tell(order)

    def close(self) -> None:
        """End everything at once."""
        for front_end in self.front_ends.values():
            front_end.kill()
        self.engines.close()

    def _start(self, place: int) -> None:
        shared, number = self._shared, next(self._shared.numbers)
        start = FrontEndStart(
            number=number,
            settings=self.settings,
            checkpoint=self._checkpoint,
            socket=shared.bound.fileno(),
            supervisor=self.engines.address,
            folder=self.engines.folder,
            settings_file=shared.settings_file,
            usage=shared.usage_file,
            others_serve=self._beside or self.ready,
            log_levels=log_levels(),
        )
        self._places[number] = place
        self.front_ends[number] = Child(
            "megatalker.serving.server.front_end",
            start,
            f"front end {place}",
            lambda child: self._post(partial(self._bury, number, child)),
            pass_fds=[shared.bound.fileno()],
            environment={SHARED_METRICS: str(shared.metrics)},
        )

    def _hear(self, message: ClientReady | ClientFailed) -> None:
        match message:
            case ClientReady(client=client, what=what):
                self._ready.add(self._places[client])
                self.what = what
            case ClientFailed(failure=failure):
                self.failure = self.failure or failure.exception()

    def _bury(self, number: int, child: Child) -> None:
        """A front end is over: its connections are gone, and another one takes its place."""
        child.forget()
        del self.front_ends[number]
        place = self._places.pop(number)
        self._shared.forget_front_end(number, child.pid)
        self.engines.detach(number)
        if self._over_at is not None or self.failure is not None:
            return
        logger.error("%s is gone (%s), with its connections", child, child.how_it_ended)
        at = self._plans[place].after_death()
        if at is None:
            self.failure = BackendFaultError(f"no front end can be kept up; the last one ended: {child.how_it_ended}")
        else:
            self._restart_at[place] = at


class ServerSupervisor:
    """Runs a server of several processes until a signal ends it.

    SIGTERM lets utterances finish (``drain_timeout_s``); SIGINT, and a second signal of either kind, ends them. Before
    it is ready, either ends it at once. SIGHUP reads the settings again: engines and front ends with the new ones begin
    while the old ones serve, and replace them once they are warm. Where something is wrong with the new settings, all
    stays as it was, and the log says why.

    Args:
        settings: to begin with.
        read: reads the settings again.
        bound: from :func:`~megatalker.serving.server.address.bind`.
        settings_file: whose keys the server follows.
    """

    def __init__(
        self, settings: Settings, read: Callable[[], Settings], bound: socket.socket, settings_file: Path | None = None
    ) -> None:
        self._settings, self._read, self._bound = settings, read, bound
        self._shared = ServerState(bound, settings_file)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._current: Generation | None = None
        self._next: Generation | None = None
        self._old: list[Generation] = []
        self._reloading = self._again = self._announced = self._failed = self._over = False
        self._stopped_by: int | None = None
        self.url = server_url(settings.server, bound)

    def run(self) -> None:
        """Serve until a signal comes, which is then delivered as if nobody had caught it, unless it is SIGINT.

        Raises:
            MegatalkerError: it cannot serve, or not any more.
        """
        with ExitStack() as stack:
            stack.callback(self._shared.close)
            stack.callback(self._close)
            with download_bar() as progress:
                checkpoint = locate(self._settings.checkpoint, progress=progress)
            when = "at the first request" if self._settings.server.lazy else "now"
            logger.info("listening at %s, loading %s", self.url, when)
            stack.enter_context(self._signals())
            stack.enter_context(known_as(self._bound.getsockname()[1]))
            self._current = self._generation(self._settings, checkpoint)
            while not self._over:
                self._turn()
        if self._current.failure is not None and self._stopped_by is None:
            raise self._current.failure
        if self._stopped_by == signal.SIGTERM:
            signal.raise_signal(signal.SIGTERM)

    @property
    def generations(self) -> list[Generation]:
        """All that there are."""
        return [one for one in (self._current, self._next, *self._old) if one is not None]

    def _turn(self) -> None:
        """Do what has come in, and what is due."""
        with suppress(queue.Empty):
            self._events.get(timeout=LOOK_S)()
        for generation in self.generations:
            generation.look()
        current, coming = self._current, self._next
        assert current is not None, "it was begun"
        if current.ready and not self._announced:
            self._announced = True
            logger.info("ready at %s: %s", self.url, current.what)
        if coming is not None and coming.failure is not None:
            self._keep(coming.failure)
        elif coming is not None and coming.ready:
            self._swap()
        for generation in list(self._old):
            if not generation.front_ends:
                self._old.remove(generation)
                generation.close()
        if current.failure is not None and not self._failed:
            self._failed = True
            for generation in self.generations:
                generation.tell(STOP)
        ending = self._failed or self._stopped_by is not None
        if ending and not any(generation.front_ends for generation in self.generations):
            self._over = True

    def _generation(self, settings: Settings, checkpoint: tuple[Path, str]) -> Generation:
        return Generation(settings, checkpoint, self._shared, self._current is not None, self._events.put)

    def _close(self) -> None:
        for generation in self.generations:
            generation.close()

    # ---- signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        caught = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
        before = {sig: signal.signal(sig, self._catch) for sig in caught}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def _catch(self, sig: int, _frame: object) -> None:
        self._events.put(partial(self._stop, sig) if sig in (signal.SIGINT, signal.SIGTERM) else self._reload)

    def _stop(self, sig: int) -> None:
        first, self._stopped_by = self._stopped_by is None, sig
        assert self._current is not None, "it was begun"
        if not self._current.ready:
            logger.info("stopping before it was ready")
            self._over = True
            return
        if self._next is not None:
            self._next.close()
            self._next = None
        drains = first and sig == signal.SIGTERM
        if drains:
            limit_s = self._current.settings.server.drain_timeout_s
            logger.info("draining for up to %g s: what is spoken is finished, nothing new is begun", limit_s)
        else:
            logger.info("stopping")
        for generation in self.generations:
            generation.tell(DRAIN if drains else STOP)

    # ---- other settings

    def _reload(self) -> None:
        if self._stopped_by is not None:
            return
        self._again = self._reloading
        if self._reloading:
            return
        self._reloading = True
        logger.info("reading the settings again")
        start_thread(self._prepare, "megatalker-reload", lambda error: self._events.put(partial(self._keep, error)))

    def _prepare(self) -> None:
        """In a thread: a checkpoint may have to be downloaded."""
        try:
            settings = self._read()
            before, after = self._settings.server, settings.server
            if (before.host, before.port) != (after.host, after.port):
                raise SettingsError(f"the address stays {self.url} while the server runs; restart it to change it")
            checkpoint = locate(settings.checkpoint)
        except MegatalkerError as error:
            self._events.put(partial(self._keep, error))
        else:
            self._events.put(partial(self._begin_next, settings, checkpoint))

    def _begin_next(self, settings: Settings, checkpoint: tuple[Path, str]) -> None:
        if self._stopped_by is None:
            self._next = self._generation(settings, checkpoint)

    def _keep(self, error: BaseException) -> None:
        """The new settings cannot be used."""
        logger.error("the server goes on with the settings it had: %s: %s", type(error).__name__, error)
        if self._next is not None:
            self._next.close()
        self._next = None
        self._end_reload()

    def _swap(self) -> None:
        before, self._current, self._next = self._current, self._next, None
        assert before is not None
        assert self._current is not None
        logger.info("serving with the new settings: %s; what was begun with the old ones goes on", self._current.what)
        self._settings = self._current.settings
        self._old.append(before)
        before.tell(RETIRE)
        self._end_reload()

    def _end_reload(self) -> None:
        self._reloading = False
        if self._again:  # they were changed while they were taken
            self._reload()
