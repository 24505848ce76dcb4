"""Both halves of a WebSocket: what a client says, and the sending half, which the utterances of a connection share."""

import asyncio
import logging

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.serving.protocol.messages import Failed, Message
from megatalker.serving.server.problems import problem
from megatalker.serving.server.token_bucket import TokenBucket

logger = logging.getLogger(__name__)

ERRORS, ERRORS_A_SECOND = 200, 20
"""Error events that a connection may earn, and how many more each second."""
OWNER_ERRORS, OWNER_ERRORS_A_SECOND = 1000, 200
"""Error events of all connections of an owner together; each costs a tenth of a millisecond or two."""


def log_defect(error: Exception) -> None:
    """Write down what nobody intended: clients are not told more than that it happened."""
    if not isinstance(error, MegatalkerError):
        logger.error("an utterance failed", exc_info=error)


async def receive_text(socket: WebSocket) -> str:
    """The client's next message.

    Raises:
        WebSocketDisconnect: the client is gone.
        InvalidRequestError: the message is binary.
    """
    await asyncio.sleep(0)  # what came at once is received without a pause: others get their turn in between
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    text: str | None = message.get("text")
    if text is None:
        raise InvalidRequestError("a binary message came, expected JSON in text messages")
    return text


class Link:
    """Sends one message at a time, in the order asked for.

    Raises:
        WebSocketDisconnect: from each method, when the client is gone, or was dropped because it reads nothing.
    """

    def __init__(self, socket: WebSocket, owner_errors: TokenBucket) -> None:
        self._socket, self._owner_errors = socket, owner_errors
        self._turn = asyncio.Lock()
        self._errors = TokenBucket(ERRORS_A_SECOND, ERRORS)

    async def tell(self, event: Message) -> None:
        """Send an event."""
        await self._send(event.to_json())

    async def tell_failure(self, utterance: str, error: Exception) -> None:
        """End an utterance with an error event; what nobody intended goes to the log as well."""
        log_defect(error)
        await self.tell(Failed(id=utterance, error=problem(error)))

    async def count_error(self) -> None:
        """A message of the client is about to be answered with an error. A connection that earns too many is hung up
        on; an owner whose connections do has to wait.
        """
        if self._errors.take():
            reason = f"more than {ERRORS_A_SECOND} messages a second that cannot be obeyed"
            await self._socket.close(1008, reason)
            raise WebSocketDisconnect(1008, reason)
        while wait_s := self._owner_errors.take():
            await asyncio.sleep(wait_s)

    async def play(self, packet: bytes) -> None:
        """Send a chunk of audio."""
        await self._send(packet)

    async def _send(self, message: str | bytes) -> None:
        async with self._turn:
            if isinstance(message, str):
                await self._socket.send_text(message)
            else:
                await self._socket.send_bytes(message)
