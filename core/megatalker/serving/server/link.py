"""The sending half of a WebSocket, shared by the utterances of one connection."""

import asyncio
import logging

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.errors import MegatalkerError
from megatalker.serving.protocol.messages import Failed, Message
from megatalker.serving.server.problems import problem

logger = logging.getLogger(__name__)


def log_defect(error: Exception) -> None:
    """Write down what nobody intended: clients are not told more than that it happened."""
    if not isinstance(error, MegatalkerError):
        logger.error("an utterance failed", exc_info=error)


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
        await self._send(event.model_dump_json())

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
