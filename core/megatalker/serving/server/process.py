"""A server process: uvicorn, told to say when it is ready and to let its clients know when it stops."""

import asyncio
import logging
import signal
import socket
import ssl
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from megatalker.errors import MegatalkerError, SettingsError
from megatalker.serving.server.app import create_app
from megatalker.serving.server.connections import watch_closing
from megatalker.serving.server.http_connection import http_connection
from megatalker.serving.server.lazy_engine import ServedEngine
from megatalker.serving.server.socket_connection import socket_connection
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.timers import SplitTimers
from megatalker.settings import ServerSettings

logger = logging.getLogger(__name__)

POLL_S = 0.02
LOOPBACK_HOSTS = ("localhost", "localhost.", "127.0.0.1", "::1")


def bind(settings: ServerSettings) -> socket.socket:
    """A socket on the address to serve. It listens: while two sockets only hold an address, neither is refused.

    Raises:
        SettingsError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen()
    except (OSError, ValueError) as error:  # ValueError: no host at all, such as one with a NUL or a very long label
        bound.close()
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise SettingsError(
            f"cannot serve on host {settings.host!r}, port {settings.port}: {why}; choose another"
        ) from error
    return bound


def guard_loopback(settings: ServerSettings, address: str) -> ServerSettings:
    """Return the settings; those of a server at the loopback ``address`` without keys limit the hosts it answers for.

    Nobody but this machine's programs should reach such a server. But a web page can have its own name resolve to
    127.0.0.1 (DNS rebinding), and a browser then lets it ask; the ``Host`` header tells.
    """
    keyed = settings.api_key is not None or settings.keys
    if keyed or settings.allowed_hosts or not ip_address(address.partition("%")[0]).is_loopback:
        return settings
    return settings.model_copy(update={"allowed_hosts": (*LOOPBACK_HOSTS, settings.host, address)})


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
        bound: from :func:`bind`.
        settings_file: whose keys it follows.
    """

    def __init__(
        self,
        engine: ServedEngine,
        settings: ServerSettings,
        bound: socket.socket,
        settings_file: Path | None = None,
    ) -> None:
        settings = guard_loopback(settings, bound.getsockname()[0])
        app = create_app(engine, settings, settings_file)
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                loop=f"{ServerLoop.__module__}:{ServerLoop.__name__}",
                http=http_connection(settings),
                ws=socket_connection(settings),
                ws_max_size=settings.max_message_bytes,
                ws_per_message_deflate=False,  # compressing audio saves nothing
                proxy_headers=False,  # the application's own (trusted_proxies)
                **_tls(settings),
                timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout_s)),
            )
        )
        self.service: SpeechService = app.state.service
        host, port = bound.getsockname()[:2]
        scheme = "http" if settings.tls_certificate is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        self._engine, self._settings, self._bound = engine, settings, bound
        self._announced = self._drains = False
        self.failure: MegatalkerError | None = None
        """Why it stopped by itself."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the bound socket."""
        await super().serve(sockets or [self._bound])

    async def on_tick(self, counter: int) -> bool:
        """Announce readiness once; stop when the engine has failed for good; look after connections that close."""
        if counter % 10 == 0:  # each second
            watch_closing(self.server_state.connections)
        self.failure = self.service.failure
        if self.failure is not None:
            return True
        if self.service.ready and not self._announced:
            self._announced = True
            engine = self._engine
            logger.info(
                "ready at %s: checkpoint %s, backend %s, codec %s",
                self.url,
                engine.checkpoint.name,
                engine.backend,
                engine.codec,
            )
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; see the class."""
        if self.service.loading:  # which cannot be interrupted, and may take minutes
            logger.info("stopping before it was ready")
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
            return
        self._drains = sig == signal.SIGTERM and not self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is spoken, or end it with an error; give clients a moment to hear of it, then disconnect them."""
        self.service.draining = True
        if self._drains:
            await self._drain()
        logger.info("stopping")
        await asyncio.to_thread(self._engine.close)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.shutdown_timeout_s):
                while self.service.running:
                    await asyncio.sleep(POLL_S)
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        limit_s = self._settings.drain_timeout_s
        logger.info("draining for up to %g s: what is spoken is finished, nothing new is begun", limit_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._drains and self.service.busy and self.service.failure is None:
                    await asyncio.sleep(POLL_S)


if TYPE_CHECKING or sys.platform == "win32":
    from asyncio import SelectorEventLoop as Loop
else:
    from uvloop import Loop


class ServerLoop(SplitTimers, Loop):
    """Uvicorn's own choice of loop, with timers that a pause of the process does not use up."""
