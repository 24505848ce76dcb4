"""The body of an HTTP response while its speech is made."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Message, Receive, Scope, Send

from megatalker.engine import Chunk, SpeechStream
from megatalker.errors import MegatalkerError
from megatalker.serving.server.encoding import Encoder
from megatalker.serving.server.problems import problem

logger = logging.getLogger(__name__)


class AudioResponse(StreamingResponse):
    """Sends speech while it is made. Where it cannot be completed, the response breaks off, which the client can see.

    Args:
        body: the bytes.
        media_type: of the bytes.
        headers: further headers.
        send_timeout_s: a client that accepts nothing for this long is given up.
        on_end: called exactly once, however it ends.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        media_type: str,
        headers: dict[str, str],
        send_timeout_s: float,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._send_timeout_s, self._on_end = send_timeout_s, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._send_timeout_s):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            logger.warning("a client accepted nothing for %g s and is dropped", self._send_timeout_s)
        except MegatalkerError as error:
            logger.error("a response breaks off: %s: %s", type(error).__name__, error)


async def audio_body(first: Chunk | None, stream: SpeechStream, encoder: Encoder) -> AsyncIterator[bytes]:
    """The speech in its format."""
    async for chunk in _chunks(first, stream):
        data = encoder.encode(chunk.pcm)
        if data:
            yield data
    yield encoder.finish()


async def event_body(first: Chunk | None, stream: SpeechStream, encoder: Encoder) -> AsyncIterator[bytes]:
    """The same as OpenAI's server-sent events, ended by ``speech.audio.done`` or ``error``."""
    try:
        async for data in audio_body(first, stream, encoder):
            if data:
                yield _event(type="speech.audio.delta", audio=base64.b64encode(data).decode())
        yield _event(
            type="speech.audio.done", facts={**asdict(stream.facts()), "switches": list(map(str, stream.switches))}
        )
    except MegatalkerError as error:
        yield _event(type="error", error=problem(error).model_dump())


def _event(**fields: object) -> bytes:
    return format_sse_event(data_str=json.dumps(fields))


async def _chunks(first: Chunk | None, stream: SpeechStream) -> AsyncIterator[Chunk]:
    if first is not None:
        yield first
        async for chunk in stream:
            yield chunk
