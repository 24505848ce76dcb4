"""Both halves of a WebSocket: what a client says, and the sending half, which the utterances of a connection share."""

import asyncio
import logging

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.serving.protocol.messages import Failed, Message
from megatalker.serving.server.problems import problem

logger = logging.getLogger(__name__)


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
    """Sends one message at a time, in the order asked for, and gives a client up that accepts nothing for too long.

    Raises:
        WebSocketDisconnect: from each method, when the client is gone or was given up.
    """

    def __init__(self, socket: WebSocket, timeout_s: float) -> None:
        self._socket, self._timeout_s = socket, timeout_s
        self._turn = asyncio.Lock()

    async def tell(self, event: Message) -> None:
        """Send an event."""
        await self._send(event.to_json())

    async def tell_failure(self, utterance: str, error: Exception) -> None:
        """End an utterance with an error event; what nobody intended goes to the log as well."""
        log_defect(error)
        await self.tell(Failed(id=utterance, error=problem(error)))

    async def play(self, packet: bytes) -> None:
        """Send a chunk of audio."""
        await self._send(packet)

    async def _send(self, message: str | bytes) -> None:
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    if isinstance(message, str):
                        await self._socket.send_text(message)
                    else:
                        await self._socket.send_bytes(message)
            except TimeoutError:
                logger.warning("a client accepted nothing for %g s and is dropped", self._timeout_s)
                raise WebSocketDisconnect(1008, "the client does not read") from None
