"""``megatalker serve``: the process that starts engines and front ends, keeps them up, and passes signals on.

It has the listening socket, which its front ends share. A *generation* is one state of the settings with the engines
and front ends that have it: SIGHUP begins another one, and the one before serves its connections out.
"""

import logging
import queue
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from megatalker.checkpoint.hub import download_bar
from megatalker.checkpoint.location import locate
from megatalker.errors import MegatalkerError, SettingsError
from megatalker.serving.background import start_thread
from megatalker.serving.server.address import server_url, wyoming_url
from megatalker.serving.server.front_end_orders import DRAIN, RETIRE, STOP
from megatalker.serving.server.generation import Generation, ServerState
from megatalker.serving.server.pid_file import known_as
from megatalker.settings import Settings

if TYPE_CHECKING:  # needs a package that only those have who want it
    from megatalker.serving.server.announcement import Announcement

logger = logging.getLogger(__name__)

LOOK_S = 0.1
"""Time between two looks at what is due."""
_ADDRESS = ("host", "port", "wyoming", "announce")
"""Settings that stay while the server runs."""


class ServerSupervisor:
    """Runs a server of several processes until a signal ends it.

    SIGTERM lets utterances finish (``drain_timeout_s``); SIGINT, and a second signal of either kind, ends them. Before
    it is ready, either ends it at once. SIGHUP reads the settings again: engines and front ends with the new ones begin
    while the old ones serve, and replace them once they are warm. With ``server.reload = "in_turn"`` the old ones end
    first, and new connections wait meanwhile. Where something is wrong with the new settings, the old ones stay, or
    begin again, and the log says why.

    Args:
        settings: to begin with.
        read: reads the settings again.
        bound: from :func:`~megatalker.serving.server.address.bind`.
        settings_file: whose keys the server follows.
        wyoming: from :func:`~megatalker.serving.server.address.bind_wyoming`.
    """

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        bound: socket.socket,
        settings_file: Path | None = None,
        wyoming: socket.socket | None = None,
    ) -> None:
        self._settings, self._read, self._bound = settings, read, bound
        self._shared = ServerState(bound, settings_file, wyoming)
        self._announcement = _announcement(settings.server.announce, wyoming)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._current: Generation | None = None
        self._next: Generation | None = None
        self._old: list[Generation] = []
        self._wanted: tuple[Settings, tuple[Path, str]] | None = None
        """Settings and checkpoint that are taken when the current generation has served out."""
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
            if self._announcement is not None:
                stack.callback(self._announcement.close)
            with download_bar() as progress:
                checkpoint = locate(self._settings.checkpoint, progress=progress)
            when = "at the first request" if self._settings.server.lazy else "now"
            logger.info("listening at %s, loading %s", self.url, when)
            if self._shared.wyoming is not None:
                logger.info("listening for Wyoming at %s", wyoming_url(self._shared.wyoming))
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
            if self._announcement is not None:
                self._announcement.begin()
        if self._wanted is not None and not current.front_ends:
            current.close()
            self._next, self._wanted = self._generation(*self._wanted), None
        elif coming is not None and coming.failure is not None:
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
        self._next = self._wanted = None
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
            if any(getattr(before, name) != getattr(after, name) for name in _ADDRESS):
                raise SettingsError(f"the address stays {self.url} while the server runs; restart it to change it")
            checkpoint = locate(settings.checkpoint)
        except MegatalkerError as error:
            self._events.put(partial(self._keep, error))
        else:
            self._events.put(partial(self._begin_next, settings, checkpoint))

    def _begin_next(self, settings: Settings, checkpoint: tuple[Path, str]) -> None:
        assert self._current is not None, "it was begun"
        if self._stopped_by is not None:
            return
        if settings.server.reload == "beside":
            self._next = self._generation(settings, checkpoint)
            return
        logger.info("what is spoken is finished, then the new settings are taken; new connections wait")
        self._current.tell(RETIRE)
        self._wanted = settings, checkpoint

    def _keep(self, error: BaseException) -> None:
        """The new settings cannot be used."""
        assert self._current is not None, "it was begun"
        failed, self._next, before = self._next, None, self._current
        if failed is not None:
            failed.close()
            if failed.asked is before.asked:
                before.failure = failed.failure
                return
        logger.error("the server goes on with the settings it had: %s: %s", type(error).__name__, error)
        if before.closed:
            self._next = self._generation(before.asked, before.checkpoint)
            return
        self._end_reload()

    def _swap(self) -> None:
        before, self._current, self._next = self._current, self._next, None
        assert before is not None
        assert self._current is not None
        what = self._current.what
        if self._current.asked is before.asked:
            logger.info("serving again: %s", what)
        else:
            logger.info("serving with the new settings: %s; what was begun with the old ones goes on", what)
        self._old.append(before)
        before.tell(RETIRE)
        self._end_reload()

    def _end_reload(self) -> None:
        self._reloading = False
        if self._again:  # they were changed while they were taken
            self._reload()


def _announcement(wanted: bool, wyoming: socket.socket | None) -> "Announcement | None":
    if not wanted or wyoming is None:
        return None
    from megatalker.serving.server.announcement import Announcement

    return Announcement(wyoming)
