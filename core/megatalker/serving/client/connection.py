"""One WebSocket to one server, in a thread with an event loop of its own, shared by many utterances."""

import asyncio
import logging
import threading
import time
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from megatalker.errors import ConnectionFailedError, EngineClosedError, InvalidRequestError, MegatalkerError
from megatalker.serving.background import start_task, start_thread
from megatalker.serving.client.session import RemoteSession
from megatalker.serving.protocol.asking import shown_url
from megatalker.serving.protocol.messages import REFUSED_TEXT, CancelMessage, Done, Failed, Open, Request, read_event
from megatalker.serving.protocol.packets import unpack
from megatalker.serving.timers import SplitTimers

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 24
POLL_S = 1.0
"""Longest time between two looks for a server that has fallen silent."""
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait."""

    connect_s: float
    """Time for a connection."""
    answer_s: float
    """Time for a message from the server while it owes one."""


class ClientLoop(SplitTimers, asyncio.SelectorEventLoop):
    """Event loop with timers that do not mistake a pause of this process for a silent server."""


class RemoteConnection:
    """Connects when there is something to say, and again after the connection broke.

    Methods may be called from any thread and return at once, except :meth:`close`. Sessions belong to the thread.
    """

    def __init__(self, url: str, headers: dict[str, str], timeouts: Timeouts) -> None:
        self._url, self._headers, self._timeouts = url, headers, timeouts
        self._shown = shown_url(url)
        self._loop = ClientLoop()
        self._outbox: asyncio.Queue[tuple[RemoteSession, Request]] = asyncio.Queue()
        self._stopping = asyncio.Event()
        self._sessions: dict[str, RemoteSession] = {}
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._closed: MegatalkerError | None = None
        self._lock = threading.RLock()  # a finalizer may send while this thread is sending
        self._thread = start_thread(self._run, "megatalker-client", self._die)

    def require_open(self) -> None:
        """Raise ``EngineClosedError`` after :meth:`close`, or why nothing can be sent any more."""
        if self._closed is not None:
            raise self._closed

    def send(self, session: RemoteSession, message: Request) -> None:
        """Send a message of this session, after those before it; what belongs to an ended session is dropped."""
        with self._lock:
            closed = self._closed
            if closed is None:
                self._loop.call_soon_threadsafe(self._post, session, message)
        if closed is not None:
            session.fail(closed)

    def close(self) -> None:
        """End everything with ``EngineClosedError``, and wait for the thread unless this is it. May be called again."""
        with self._lock:
            if self._closed is None:
                self._closed = EngineClosedError(f"the client of {self._shown} was closed; open a new one")
                self._loop.call_soon_threadsafe(self._stopping.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)

    def __str__(self) -> str:
        return self._shown

    # ---- in the thread

    def _die(self, error: BaseException) -> None:
        with self._lock:
            if self._closed is None:
                self._closed = ConnectionFailedError(f"the client of {self._shown} failed: {error!r}; open a new one")
        self._fail_all(self._closed)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        jobs = [asyncio.create_task(job) for job in (self._stopping.wait(), self._write(), self._watch())]
        done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        with self._lock:
            if self._closed is None:
                failure = next(iter(done)).exception()
                logger.error("the client of %s failed", self._shown, exc_info=failure)
                self._closed = ConnectionFailedError(f"the client of {self._shown} failed: {failure!r}; open a new one")
        await asyncio.sleep(0)  # what was sent before is posted by now
        self._fail_all(self._closed)
        for job in jobs:
            job.cancel()
        if self._socket is not None:
            await self._socket.close()
        if self._reader is not None:
            await self._reader  # it may be closing the socket itself

    def _post(self, session: RemoteSession, message: Request) -> None:
        if isinstance(message, Open):
            self._sessions[session.id] = session
        self._outbox.put_nowait((session, message))

    async def _write(self) -> None:
        while True:
            session, message = await self._outbox.get()
            if isinstance(message, Open) and session.chunks.reason is not None:
                self._sessions.pop(session.id, None)  # cancelled before the server heard of it
            if session.id not in self._sessions:
                continue
            try:
                socket = await self._connected()
                if session.id in self._sessions:
                    await socket.send(message.to_json())
            except ConnectionClosed:
                pass  # the reader finds out, too, and knows why
            except (OSError, WebSocketException) as error:
                self._fail_all(ConnectionFailedError(f"cannot connect to {self._shown}: {_why(error)}"))

    async def _connected(self) -> ClientConnection:
        if self._socket is None:
            self._socket = await connect(
                self._url,
                additional_headers=self._headers,
                open_timeout=self._timeouts.connect_s,
                ping_interval=self._timeouts.answer_s / 2,
                ping_timeout=self._timeouts.answer_s / 2,
                close_timeout=CLOSE_TIMEOUT_S / 2,
                compression=None,  # compressing audio saves nothing
                max_size=MAX_MESSAGE_BYTES,
            )
            self._reader = start_task(self._read(self._socket), "megatalker-client")
        return self._socket

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                self._take(await socket.recv())
        except ConnectionClosed as error:
            why = str(error)
        except InvalidRequestError as error:
            why = f"its messages cannot be read: {error}"
        except Exception as error:  # a bug of this client: nobody may wait for what is not read any more
            logger.exception("the client of %s failed", self._shown)
            why = f"the client failed ({type(error).__name__})"
        self._socket = None
        self._fail_all(ConnectionFailedError(f"the connection to {self._shown} broke: {why}; speak again to reconnect"))
        await socket.close()

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            packet = unpack(message)
            session = self._sessions.get(packet.id)
            if session is not None and session.connection is self:  # else another server goes on with it
                session.take_packet(packet)
            return
        event = read_event(message)
        if event.id is not None and event.id in self._sessions:
            session = self._sessions[event.id]
            over = isinstance(event, Done | Failed) if session.connection is not self else session.take_event(event)
            if over:
                del self._sessions[event.id]
        elif isinstance(event, Failed):  # such as more text for an utterance that has just ended
            level = logging.WARNING if event.error.message.startswith(REFUSED_TEXT) else logging.DEBUG
            logger.log(level, "%s refused a message: %s", self._shown, event.error.message)

    async def _watch(self) -> None:
        limit = self._timeouts.answer_s
        period = min(POLL_S, limit / 4)
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(period)
            paused_s = max(0.0, time.monotonic() - slept_at - 2 * period)  # this process was, not the server
            for session in list(self._sessions.values()):
                session.quiet_since += paused_s
                quiet = time.monotonic() - session.quiet_since
                if session.chunks.reason is None and session.connection is self and session.awaited and quiet > limit:
                    session.fail(ConnectionFailedError(f"{self._shown} has not answered for {limit:g} s"))
                    self._post(session, CancelMessage(id=session.id))

    def _fail_all(self, error: MegatalkerError) -> None:
        lost, self._sessions = self._sessions, {}
        for session in lost.values():
            if session.connection is self:
                session.fail(error)


def _why(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        return f"it answered {error.response.status_code}: {error.response.body.decode(errors='replace')[:200]}"
    if isinstance(error, TimeoutError):
        return "no answer in time; is it a megatalker server, and running?"
    return f"{str(error) or type(error).__name__}; is the server running?"
