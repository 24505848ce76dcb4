"""A WebSocket of the Realtime protocol: events that come in, one after another, and events that go out."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from loguru import logger
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.serving.protocol.realtime_messages import RealtimeError, read_message
from megatalker.serving.server.callers import TokenBucket
from megatalker.serving.server.problems import TooManyConnectionsError, error_details
from megatalker.serving.server.realtime_events import BETA, EventWriter
from megatalker.settings import ServerSettings

ERRORS, ERRORS_A_SECOND = 200, 20
"""Error events that a connection may earn, and how many more each second."""
INTERRUPTION_S = 5.0
"""Seconds that the pipeline may take for what was asked of it."""


async def at_most(waiting: Coroutine[Any, Any, bool]) -> None:
    """Wait, but not for ever: a pipeline that hangs is no reason to hear the client no more."""
    with suppress(TimeoutError):
        async with asyncio.timeout(INTERRUPTION_S):
            await waiting


async def turn_away(socket: WebSocket) -> None:
    """Tell a client that there are too many, and hang up."""
    details = {**error_details(TooManyConnectionsError()), "event_id": None}
    await socket.send_text(EventWriter(beta=False).write("error", {"error": details}) or "")
    await socket.close(1013, "too many conversations")


class RealtimeConnection(ABC):
    """Reads events of a client and sends events to it.

    Args:
        socket: accepted.
        limits: how large messages may be, and how long sending may take.
    """

    def __init__(self, socket: WebSocket, limits: ServerSettings) -> None:
        self.limits = limits
        self.writer = EventWriter(beta=socket.headers.get("openai-beta", "") == BETA)
        self.gone = asyncio.Event()
        """The client is gone, or does not read."""
        self._socket = socket
        self._asking: str | None = None
        self._errors = TokenBucket(ERRORS_A_SECOND, ERRORS)
        self._sending = asyncio.Lock()

    async def read(self) -> None:
        """Read events until the client goes away. What an event does wrong ends nothing."""
        while True:
            await asyncio.sleep(0)  # what came at once is received without a pause: other connections run in between
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._asking = None
            try:
                await self.handle(self._fields(message.get("text")))
            except Exception as error:
                if self._errors.take():
                    await self.close(1008, f"more than {ERRORS_A_SECOND} messages a second that cannot be obeyed")
                    return
                await self.refuse(error)

    @abstractmethod
    async def handle(self, given: Mapping[str, Any]) -> None:
        """Do what an event asks for.

        Raises:
            InvalidRequestError: it cannot be.
        """

    def _fields(self, text: str | None) -> Mapping[str, Any]:
        if text is None:
            raise InvalidRequestError("a binary message came, expected JSON in text messages")
        most = self.limits.max_message_bytes
        if len(text) > most:
            raise InvalidRequestError(
                f"the message has {len(text)} characters, expected at most {most}; send audio in smaller parts"
            )
        given, self._asking = read_message(text)
        return given

    async def refuse(self, error: Exception) -> None:
        """Tell an error."""
        if not isinstance(error, MegatalkerError):
            logger.opt(exception=error).error("a Realtime event failed")
        asking, self._asking = self._asking, None
        details = error_details(error)
        code = error.code if isinstance(error, RealtimeError) else details["code"]
        await self.tell("error", error={**details, "code": code, "event_id": asking})

    async def tell(self, kind: str, **fields: Any) -> None:
        """Send an event. A client that is gone, or does not read, is told nothing more."""
        message = self.writer.write(kind, fields)
        if message is None or self.gone.is_set():
            return
        try:
            async with self._sending, asyncio.timeout(self.limits.send_timeout_s):
                await self._socket.send_text(message)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            self.gone.set()

    async def close(self, code: int, reason: str) -> None:
        """Close the connection, unless it is closed."""
        if self._socket.application_state is WebSocketState.CONNECTED:
            with suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
                async with asyncio.timeout(self.limits.send_timeout_s):
                    await self._socket.close(code, reason)
