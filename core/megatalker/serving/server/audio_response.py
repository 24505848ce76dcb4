"""An utterance over HTTP, and the body of its response while the speech is made."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Self

from fastapi import Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Message, Receive, Scope, Send

from megatalker.engine import Chunk, SpeechStream
from megatalker.errors import MegatalkerError
from megatalker.serving.protocol.messages import InstructFate, SpeechFields
from megatalker.serving.server.encoding import Encoder, Samples
from megatalker.serving.server.problems import problem
from megatalker.serving.server.speaker import Speaker
from megatalker.serving.server.threads import run_in

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpUtterance:
    """An utterance whose first chunk is there, so that what went wrong before could be told by a status."""

    speaker: Speaker
    text: str
    stream: SpeechStream
    first: Chunk | None
    """``None`` if there is no speech."""

    @classmethod
    async def begin(cls, speaker: Speaker, text: str, asked: SpeechFields, request: Request) -> Self:
        """Begin it; :meth:`end` must follow.

        A client that goes away meanwhile, maybe while it waits for a free stream, ends the stream.

        Raises:
            MegatalkerError: as :meth:`Speaker.begin`, or nothing could be spoken.
        """
        stream = await speaker.begin(text, asked, "http")
        try:
            return cls(speaker, text, stream, await _first_chunk(stream, request))
        except BaseException:
            speaker.end(stream)
            raise

    def end(self) -> None:
        """The response is over, or nobody listens any more."""
        self.speaker.end(self.stream)

    async def chunks(self) -> AsyncIterator[Samples]:
        """All samples, as they come."""
        if self.first is not None:
            yield self.first.pcm
            async for chunk in self.stream:
                yield chunk.pcm


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


async def audio_body(utterance: HttpUtterance, encoder: Encoder) -> AsyncIterator[bytes]:
    """The speech in its format."""
    threads = utterance.speaker.encoders
    async for samples in utterance.chunks():
        data = await run_in(threads, encoder.encode, samples) if encoder.slow else encoder.encode(samples)
        if data:
            yield data
    rest = await run_in(threads, encoder.finish) if encoder.slow else encoder.finish()
    if rest:
        yield rest


async def event_body(
    utterance: HttpUtterance, encoder: Encoder, instructions: InstructFate | None
) -> AsyncIterator[bytes]:
    """The same as OpenAI's server-sent events, ended by ``speech.audio.done`` or ``error``.

    Of ``usage``, input tokens are those of the text, output tokens the frames.
    """
    try:
        async for data in audio_body(utterance, encoder):
            yield _event(type="speech.audio.delta", audio=base64.b64encode(data).decode())
        facts = utterance.stream.facts()
        heard, spoken = await utterance.speaker.count_tokens(utterance.text), facts.frames
        yield _event(
            type="speech.audio.done",
            usage={"input_tokens": heard, "output_tokens": spoken, "total_tokens": heard + spoken},
            facts={**asdict(facts), "switches": list(map(str, utterance.stream.switches))},
            instructions=instructions,
        )
    except MegatalkerError as error:
        yield _event(type="error", error=problem(error).model_dump())


def _event(**fields: object) -> bytes:
    return format_sse_event(data_str=json.dumps(fields))


async def _first_chunk(stream: SpeechStream, request: Request) -> Chunk | None:
    first = asyncio.ensure_future(anext(stream, None))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((first, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            stream.cancel()
        return await first
    finally:
        first.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
