"""A generation of a server: the engines and front ends of one state of the settings, and what all generations share."""

import itertools
import logging
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead
from pydantic import SecretStr

from megatalker.engine.costs import RunningClock
from megatalker.errors import BackendFaultError, MegatalkerError
from megatalker.serving.processes.child import Child
from megatalker.serving.processes.control import LONGEST_GAP_S, ClientFailed, ClientReady, log_levels, private_folder
from megatalker.serving.processes.supervisor import EngineSupervisor, Restarts
from megatalker.serving.server.defaults import SHARED_METRICS, engine_devices, front_end_count
from megatalker.serving.server.front_end_orders import STOP, FrontEndStart
from megatalker.serving.server.places import Places
from megatalker.serving.server.usage import KeyUsage
from megatalker.settings import Settings

logger = logging.getLogger(__name__)

SILENT_S = 10.0
"""A front end that says nothing for this long, and for ``step_deadline_s``, is killed."""
GRACE_S = 5.0
"""A front end that takes this much longer to end than its settings allow is killed."""


class ServerState:
    """The sockets, counters and secret of tokens, which all processes of a server share over all generations."""

    def __init__(self, bound: socket.socket, settings_file: Path | None, wyoming: socket.socket | None) -> None:
        self.bound, self.settings_file, self.wyoming = bound, settings_file, wyoming
        self.folder = Path(private_folder())
        self.metrics, self.usage_file = self.folder / "metrics", self.folder / "usage"
        self.metrics.mkdir()
        self.usage = KeyUsage(self.usage_file)
        self.places_file = self.folder / "places"
        Places.create(self.places_file)
        self.secret = SecretStr(secrets.token_urlsafe(32))
        self.numbers = itertools.count(1)

    def forget_front_end(self, number: int, pid: int) -> None:
        """A front end is over."""
        self.usage.forget_process(number)
        Places.forget(self.places_file, number)
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
        self.asked, self.checkpoint = settings, checkpoint
        self._shared, self._beside, self._post = shared, beside, post
        self.closed = False
        devices = engine_devices(settings)
        self.count = front_end_count(settings, devices)
        own = {"token_secret": settings.server.token_secret or shared.secret}
        self.settings = settings.model_copy(update={"server": settings.server.model_copy(update=own)})
        self.what = ""
        """Checkpoint, backend and codec, in words."""
        self.failure: MegatalkerError | None = None
        """Why this generation cannot serve."""
        self._ready: set[int] = set()
        self.front_ends: dict[int, Child] = {}
        """By number."""
        self._places: dict[int, int] = {}
        self._heard_at: dict[int, float] = {}
        """By number of the front ends that serve."""
        self._clock = RunningClock(longest_gap_s=LONGEST_GAP_S)
        self._restarts = Restarts(self.count)
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
        for place in self._restarts.take_due():
            self._start(place)
        now, limit_s = self._clock(), max(SILENT_S, self.settings.step_deadline_s)
        for number, heard_at in list(self._heard_at.items()):
            if now - heard_at > limit_s:
                logger.error("%s has said nothing for %.0f s and is killed", self.front_ends[number], now - heard_at)
                del self._heard_at[number]
                self.front_ends[number].kill()
        if self._over_at is not None and time.monotonic() > self._over_at:
            for front_end in self.front_ends.values():
                logger.error("%s does not end and is killed", front_end)
                front_end.kill()
            self._over_at = None

    def tell(self, order: bytes) -> None:
        """Tell all front ends to end in this way."""
        server = self.settings.server
        limit_s = server.shutdown_timeout_s + (0.0 if order == STOP else server.drain_timeout_s) + GRACE_S
        self._over_at = time.monotonic() + limit_s
        self._restarts.clear()
        for front_end in self.front_ends.values():
            front_end.tell(order)

    def close(self) -> None:
        """End everything at once. May be called again."""
        self.closed = True
        for front_end in self.front_ends.values():
            front_end.kill()
        self.engines.close()

    def _start(self, place: int) -> None:
        shared, number = self._shared, next(self._shared.numbers)
        start = FrontEndStart(
            number=number,
            settings=self.settings,
            checkpoint=self.checkpoint,
            socket=shared.bound.fileno(),
            wyoming=None if shared.wyoming is None else shared.wyoming.fileno(),
            supervisor=self.engines.address,
            folder=self.engines.folder,
            settings_file=shared.settings_file,
            usage=shared.usage_file,
            places=shared.places_file,
            front_ends=self.count,
            others_serve=self._beside or self.ready,
            log_levels=log_levels(),
        )
        self._places[number] = place
        self.front_ends[number] = Child(
            "megatalker.serving.server.front_end",
            start,
            f"front end {place}",
            lambda child: self._post(partial(self._bury, number, child)),
            pass_fds=[one.fileno() for one in (shared.bound, shared.wyoming) if one is not None],
            environment={SHARED_METRICS: str(shared.metrics)},
        )

    def _hear(self, message: ClientReady | ClientFailed) -> None:
        match message:
            case ClientReady(client=client, what=what):
                if client in self.front_ends:  # else it is over
                    self._ready.add(self._places[client])
                    self._heard_at[client], self.what = self._clock(), what
            case ClientFailed(failure=failure):
                self.failure = self.failure or failure.exception()

    def _bury(self, number: int, child: Child) -> None:
        """A front end is over: its connections are gone, and another one takes its place."""
        child.forget()
        del self.front_ends[number]
        self._heard_at.pop(number, None)
        place = self._places.pop(number)
        self._shared.forget_front_end(number, child.pid)
        self.engines.detach(number)
        if self._over_at is not None or self.failure is not None or self.closed:
            return
        logger.error("%s is gone (%s), with its connections", child, child.how_it_ended)
        if not self._restarts.plan(place):
            self.failure = BackendFaultError(f"no front end can be kept up; the last one ended: {child.how_it_ended}")
