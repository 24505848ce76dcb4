"""``POST /v1/audio/speech``: OpenAI's speech API, with our own fields beside its fields."""

import asyncio
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import Chunk, SpeechStream
from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.messages import SpeechFields
from megatalker.serving.server.audio_response import AudioResponse, audio_body, event_body
from megatalker.serving.server.encoding import ENCODERS, ResponseFormat
from megatalker.serving.server.problems import UnknownModelError
from megatalker.serving.server.speaker import Speaker
from megatalker.settings import ServerSettings


class SpeechRequest(SpeechFields):
    """OpenAI's fields, and those of :class:`~megatalker.serving.protocol.messages.SpeechFields`."""

    input: str
    """What to say."""
    model: str | None = None
    """The model served here (``GET /v1/models``), or nothing."""
    instructions: str | None = None
    """OpenAI's name for ``instruct``."""
    response_format: ResponseFormat = "wav"
    speed: Annotated[float, Field(gt=0)] = 1.0
    """Only 1: the model sets its own pace."""
    stream_format: Literal["audio", "sse"] = "audio"

    def speech_fields(self) -> SpeechFields:
        """What the engine is asked for.

        Raises:
            InvalidRequestError: another speed than 1, or two instructions.
        """
        if self.speed != 1.0:
            raise InvalidRequestError(
                f"speed is {self.speed:g}, expected 1: the model sets its own pace; "
                "ask for slow or fast speech in instructions, or change the speed in the player"
            )
        if self.instructions is not None and self.instruct is not None:
            raise InvalidRequestError("instructions and instruct mean the same; give one of them")
        fields = {name: getattr(self, name) for name in SpeechFields.model_fields}
        return SpeechFields(**fields | {"instruct": self.instruct or self.instructions})


def speech_routes(speaker: Speaker, settings: ServerSettings, model: str) -> APIRouter:
    """The route over this speaker; ``model`` is the name requests may use."""
    router = APIRouter()

    @router.post("/v1/audio/speech", response_class=StreamingResponse)
    async def speech(body: SpeechRequest, request: Request) -> Response:
        """Speak; audio is sent while it is made (FLAC: when it is complete)."""
        if body.model not in (None, model):
            raise UnknownModelError(f"model is {body.model!r}, expected {model!r}, which is what is served here")
        stream = await speaker.begin(body.input, body.speech_fields(), "http")
        end = partial(speaker.end, stream)
        try:
            first = await _first_chunk(stream, request)
        except BaseException:
            end()
            raise
        encoder = ENCODERS[body.response_format]()
        make = audio_body if body.stream_format == "audio" else event_body
        media_type = encoder.media_type if body.stream_format == "audio" else "text/event-stream"
        headers = {
            "X-Megatalker-Seed": str(stream.seed),
            "X-Megatalker-Backend": stream.backend,
            "X-Sample-Rate": str(SAMPLE_RATE),
        }
        return AudioResponse(make(first, stream, encoder), media_type, headers, settings.send_timeout_s, end)

    return router


async def _first_chunk(stream: SpeechStream, request: Request) -> Chunk | None:
    """Wait for it, so that what goes wrong before can still be told by a status; ``None`` if there is no speech.

    A client that goes away meanwhile, maybe while it waits for a free stream, ends the stream.
    """
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
