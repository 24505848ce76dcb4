"""A front end: a process of a server that takes connections. ``python -m megatalker.serving.server.front_end``."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO

import zmq

from megatalker.checkpoint import Checkpoint
from megatalker.errors import MegatalkerError
from megatalker.serving.background import start_task, start_thread
from megatalker.serving.processes import ProcessEngine
from megatalker.serving.processes.child import told
from megatalker.serving.processes.client import EngineClient
from megatalker.serving.processes.control import (
    ClientFailed,
    ClientReady,
    Context,
    Failure,
    Sender,
    pack,
    set_log_levels,
)
from megatalker.serving.server.front_end_orders import DRAIN, RETIRE, STOP, FrontEndStart
from megatalker.serving.server.lazy_engine import LazyEngine
from megatalker.serving.server.logs import configure_logging
from megatalker.serving.server.places import Places
from megatalker.serving.server.process import TalkServer
from megatalker.serving.server.usage import KeyUsage
from megatalker.settings import Settings

BEAT_S = 1.0
"""Time between two heartbeats."""


class FrontEnd(TalkServer):
    """The server of this process, which does as its supervisor says."""

    def __init__(self, start: FrontEndStart, tell: Sender) -> None:
        """Raises as :class:`~megatalker.serving.server.process.TalkServer`."""

        def connect(settings: Settings, checkpoint: Checkpoint) -> ProcessEngine:
            client = EngineClient(start.supervisor, start.folder, start.number, settings, self._loop)
            return ProcessEngine(settings, checkpoint, client)

        self._start, self._tell = start, tell
        settings = start.settings
        super().__init__(
            LazyEngine(settings, Checkpoint(*start.checkpoint), connect),
            settings.server,
            socket.socket(fileno=start.socket),
            start.settings_file,
            KeyUsage(start.usage, start.number),
            wyoming=None if start.wyoming is None else socket.socket(fileno=start.wyoming),
            places=Places(settings.server.max_connections, start.front_ends, start.places, start.number),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beats: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Listen to none: the supervisor gets them."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen to the supervisor, too; and take connections once others would not serve them sooner.

        Raises:
            MegatalkerError: it cannot be warmed up, while others serve.
        """
        self._loop = asyncio.get_running_loop()
        if self._start.others_serve and not self._start.settings.server.lazy:
            self.service.begin_warm_up()
            await self.service.warm_up_over()
            if self.service.failure is not None:
                raise self.service.failure
        await super().startup(sockets)

    def announce(self, what: str) -> None:
        """Tell the supervisor, again and again: it ends a front end that says nothing for long."""
        self._beats = start_task(self._beat(pack(ClientReady(self._start.number, what))), "heartbeat")

    async def _beat(self, message: bytes) -> None:
        while True:
            self._tell(message)
            await asyncio.sleep(BEAT_S)

    def obey(self, order: bytes) -> None:
        """Do what the supervisor says. May be called from any thread."""
        if self._loop is None:  # nothing is served yet
            os._exit(0)
        does = {
            DRAIN: lambda: self.handle_exit(signal.SIGTERM, None),
            STOP: lambda: self.handle_exit(signal.SIGINT, None),
            RETIRE: self.retire,
        }
        self._loop.call_soon_threadsafe(does[order])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        if self.service.loading:  # there is nothing to finish
            os._exit(0)
        super().handle_exit(sig, frame)


def _listen(given: IO[bytes], server: FrontEnd) -> None:
    for line in given:
        server.obey(line)
    os._exit(1)  # the supervisor is gone


def main() -> None:
    """Run the process until the supervisor ends it, or ends itself."""
    for sent_to_all in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # by a terminal, or systemd
        signal.signal(sent_to_all, signal.SIG_IGN)
    start, given = told()
    configure_logging(start.settings.server.log_format)
    set_log_levels(start.log_levels)
    context: Context = zmq.Context.instance()
    tell = Sender(context, start.supervisor)
    failure: MegatalkerError | None
    try:
        server = FrontEnd(start, tell)
        start_thread(lambda: _listen(given, server), "megatalker-supervised")
        server.run()
        failure = server.failure
    except MegatalkerError as error:
        failure = error
    if failure is not None:
        tell(pack(ClientFailed(start.number, Failure.of(failure))))
    tell.close(linger_ms=1000)
    context.term()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0 if failure is None else 1)  # threads of libraries need not be waited for


if __name__ == "__main__":
    main()
