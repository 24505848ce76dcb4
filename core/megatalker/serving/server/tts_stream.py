"""``POST /tts/stream``: text in, 16-bit samples out in pieces of 40 ms."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from megatalker.serving.protocol.plain_messages import PlainFields
from megatalker.serving.server.audio_response import AudioResponse, HttpUtterance
from megatalker.serving.server.encoding import PcmEncoder, pieces
from megatalker.serving.server.openapi import bodies, errors
from megatalker.serving.server.request_body import body_schema, read_body
from megatalker.serving.server.speaker import Speaker
from megatalker.settings import ServerSettings


class StreamRequest(PlainFields):
    """What to say, and how."""

    text: str


def tts_stream_routes(speaker: Speaker, settings: ServerSettings) -> APIRouter:
    """The route over this speaker."""
    router = APIRouter()
    media_type = PcmEncoder.media_type

    @router.post(
        "/tts/stream",
        response_class=StreamingResponse,
        responses=bodies("Samples: 16-bit, little-endian, mono, 24 kHz.", media_type) | errors(404, 429),
        openapi_extra=body_schema(StreamRequest),
    )
    async def stream(request: Request) -> Response:
        """Speak; each part of the chunked body is 40 ms of speech, sent as soon as it is made."""
        body, ignored = await read_body(request, StreamRequest, strict=settings.strict)
        utterance = await HttpUtterance.begin(speaker, body.text, body.speech_fields(), request)
        headers = utterance.headers(ignored)
        return AudioResponse(_body(utterance), media_type, headers, settings.send_timeout_s, utterance.end)

    return router


async def _body(utterance: HttpUtterance) -> AsyncIterator[bytes]:
    async for samples in utterance.chunks():
        for piece in pieces(samples):
            yield piece
