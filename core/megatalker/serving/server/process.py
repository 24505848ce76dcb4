"""A server process: uvicorn, told to say when it is ready and to let its clients know when it stops."""

import asyncio
import logging
import signal
import socket
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from megatalker.errors import MegatalkerError, SettingsError
from megatalker.serving.server.accepting import SharedSocketServer
from megatalker.serving.server.address import guard_loopback, server_url
from megatalker.serving.server.app import create_app
from megatalker.serving.server.connections import watch_closing
from megatalker.serving.server.http_connection import http_connection
from megatalker.serving.server.information import Aliases
from megatalker.serving.server.lazy_engine import ServedEngine
from megatalker.serving.server.places import Places
from megatalker.serving.server.socket_connection import socket_connection
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.server.usage import KeyUsage
from megatalker.serving.timers import SplitTimers
from megatalker.settings import ServerSettings

logger = logging.getLogger(__name__)

POLL_S = 0.02
IDLE_S = 1.0
"""A server that is replaced closes a connection on which nothing was under way for this long."""


def _tls(settings: ServerSettings) -> dict[str, Any]:
    """Uvicorn's options; raises ``SettingsError`` where the files cannot be used."""
    certificate, key, password = settings.tls_certificate, settings.tls_key, settings.tls_key_password
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise SettingsError("server.tls_certificate and server.tls_key go together; set both or neither")
    options = {
        "ssl_certfile": str(certificate),
        "ssl_keyfile": str(key),
        "ssl_keyfile_password": "" if password is None else password.get_secret_value(),
    }
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*options.values())
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"server.tls_certificate {str(certificate)!r} and tls_key {str(key)!r} cannot be used: {error}; expected "
            "a certificate and its key in PEM files, and tls_key_password where it has one"
        ) from error
    return options


class TalkServer(uvicorn.Server):
    """Serves one engine, which it closes at the end. :meth:`run` returns after a signal, or when the engine fails.

    SIGTERM lets utterances finish (``drain_timeout_s``); SIGINT, and a second signal of either kind, ends them. During
    warm-up, when there is nothing to finish, a signal ends the process as if nobody had caught it.

    Args:
        engine: opened; it is warmed up here.
        settings: the server's.
        bound: from :func:`~megatalker.serving.server.address.bind`.
        settings_file: whose keys it follows.
        usage: of its keys, which other processes share.
        wyoming: from :func:`~megatalker.serving.server.address.bind_wyoming`.
        places: for its connections; by default all.
    """

    def __init__(
        self,
        engine: ServedEngine,
        settings: ServerSettings,
        bound: socket.socket,
        settings_file: Path | None = None,
        usage: KeyUsage | None = None,
        *,
        wyoming: socket.socket | None = None,
        places: Places | None = None,
    ) -> None:
        self._places = places or Places(settings.max_connections)
        settings = guard_loopback(settings, bound.getsockname()[0])
        app = create_app(engine, settings, settings_file, usage)
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                loop=f"{ServerLoop.__module__}:{ServerLoop.__name__}",
                http=http_connection(settings, self._places),
                ws=socket_connection(settings, self._places),
                ws_max_size=settings.max_message_bytes,
                ws_per_message_deflate=False,  # compressing audio saves nothing
                proxy_headers=False,  # the application's own (trusted_proxies)
                **_tls(settings),
                timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout_s)),
            )
        )
        self.service: SpeechService = app.state.service
        self.url = server_url(settings, bound)
        self._engine, self._settings, self._bound, self._wyoming = engine, settings, bound, wyoming
        self._announced = self._drains = self._retires = False
        self.failure: MegatalkerError | None = None
        """Why it stopped by itself."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the bound socket."""
        await super().serve(sockets or [self._bound])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections."""
        await super().startup([])  # its own servers would take all connections that wait
        config, connections = self.config, self.server_state.connections

        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(config, self.server_state, self.lifespan.state)  # type: ignore[call-arg]
            return made

        servers: list[Any] = self.servers
        servers += [
            SharedSocketServer(bound, connection, config.ssl, connections, self._places) for bound in sockets or ()
        ]
        if self._wyoming is not None:
            from megatalker.serving.server.wyoming_connection import wyoming_connection

            make, aliases = wyoming_connection(self._settings, self._places), Aliases(self.service, self._settings)
            servers.append(
                SharedSocketServer(
                    self._wyoming, lambda: make(self.service, aliases, connections), None, connections, self._places
                )
            )

    async def on_tick(self, counter: int) -> bool:
        """Announce readiness once; stop when the engine has failed for good; look after connections that close."""
        if counter % 10 == 0:  # each second
            watch_closing(self.server_state.connections)
            self.service.metrics.tasks.set(len(asyncio.all_tasks()))
        self.failure = self.service.failure
        if self.failure is not None:
            return True
        if self.service.ready and not self._announced:
            self._announced = True
            engine = self._engine
            self.announce(f"checkpoint {engine.checkpoint.name}, backend {engine.backend}, codec {engine.codec}")
        return await super().on_tick(counter)

    def announce(self, what: str) -> None:
        """Say that this is served."""
        logger.info("ready at %s: %s", self.url, what)

    def retire(self) -> None:
        """Take no further connection, and stop when those that there are have ended, or after ``drain_timeout_s``.
        Another process serves the address from now on.
        """
        self._retires = self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; see the class."""
        if self.service.loading:  # which cannot be interrupted, and may take minutes
            signal.signal(sig, signal.SIG_DFL)  # nothing is logged: the signal may have come while a line was written
            signal.raise_signal(sig)
            return
        self._retires &= sig != signal.SIGINT
        self._drains = sig == signal.SIGTERM and not self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is spoken, or end it with an error; give clients a moment to hear of it, then disconnect them."""
        if self._retires:
            await self._serve_out()
        self.service.draining = True
        if self._drains:
            await self._drain()
        await asyncio.to_thread(self._engine.close)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.shutdown_timeout_s):
                while self.service.running:
                    await asyncio.sleep(POLL_S)
        await super().shutdown(sockets)

    async def _serve_out(self) -> None:
        """Serve the connections that there are. An HTTP connection is closed after the answer that it waits for; one on
        which nothing is under way gets a moment for the request that may be on its way.
        """
        idle_since: dict[Any, float] = {}
        for listening in self.servers:
            listening.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                connections: set[Any] = self.server_state.connections
                while connections and self._retires and self.service.failure is None:
                    now = time.monotonic()
                    for connection in list(connections):
                        if not connection.idle:
                            idle_since.pop(connection, None)
                        if now - idle_since.setdefault(connection, now) > IDLE_S or connection.closes_after_answer:
                            connection.shutdown()
                    await asyncio.sleep(POLL_S)

    async def _drain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                while self._drains and self.service.busy and self.service.failure is None:
                    await asyncio.sleep(POLL_S)


if TYPE_CHECKING or sys.platform == "win32":
    from asyncio import SelectorEventLoop as Loop
else:
    from uvloop import Loop


class ServerLoop(SplitTimers, Loop):
    """Uvicorn's own choice of loop, with timers that a pause of the process does not use up."""
