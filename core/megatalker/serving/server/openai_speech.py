"""``POST /v1/audio/speech``: OpenAI's speech API, with our own fields beside its fields."""

from typing import Annotated, BinaryIO, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field, field_validator

from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.leniency import Number
from megatalker.serving.protocol.messages import SpeechFields
from megatalker.serving.server.aliases import Aliases
from megatalker.serving.server.audio_response import (
    AudioResponse,
    HttpUtterance,
    audio_body,
    event_body,
    header_value,
    whole_file,
)
from megatalker.serving.server.encoding import (
    ENCODERS,
    FASTEST,
    SLOWEST,
    Encoder,
    ResponseFormat,
    StretchingEncoder,
)
from megatalker.serving.server.openapi import bodies, errors
from megatalker.serving.server.request_body import body_schema, read_body
from megatalker.serving.server.speaker import Speaker
from megatalker.settings import ServerSettings


class SpeechRequest(SpeechFields):
    """OpenAI's fields, and those of :class:`~megatalker.serving.protocol.messages.SpeechFields`."""

    input: Annotated[str, Field(json_schema_extra={"minLength": 1})]
    """What to say."""
    model: str | None = None
    """The model served here or one of its aliases (``GET /v1/models``); it answers to any other name, too, unless the
    server is strict. The header ``X-Megatalker-Model`` tells what served."""
    instructions: str | None = None
    """OpenAI's name for ``instruct``."""
    response_format: ResponseFormat = "mp3"
    speed: Annotated[Number, Field(ge=SLOWEST, le=FASTEST)] = 1.0
    """2 takes half the time, at the same pitch."""
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool = True
    """``False`` answers with a whole file when all is said: with its length, and a true header. Events are a stream."""
    word_timestamps: bool = False
    """With ``stream_format`` ``sse``: ``speech.audio.words`` events tell which words were spoken, and estimate when."""

    @field_validator("voice", mode="before")
    @classmethod
    def _voice_by_id(cls, voice: object) -> object:
        """OpenAI's clients may send a voice as an object."""
        return voice["id"] if isinstance(voice, dict) and voice.keys() == {"id"} else voice

    def speech_fields(self, aliases: Aliases) -> SpeechFields:
        """What the engine is asked for.

        Raises:
            InvalidRequestError: two instructions.
        """
        if self.instructions is not None and self.instruct is not None:
            raise InvalidRequestError("instructions and instruct mean the same; give one of them")
        fields = {name: getattr(self, name) for name in SpeechFields.model_fields}
        fields |= {"instruct": self.instruct or self.instructions, "voice": aliases.voice(self.voice)}
        return SpeechFields(**fields)

    def encoder(self, file: BinaryIO | None = None) -> Encoder:
        """What makes the format that is asked for; see :class:`~megatalker.serving.server.encoding.Encoder`."""
        encoder = ENCODERS[self.response_format](file=file)
        return encoder if self.speed == 1.0 else StretchingEncoder(self.speed, encoder)


def speech_routes(speaker: Speaker, settings: ServerSettings, aliases: Aliases) -> APIRouter:
    """The route over this speaker."""
    router = APIRouter()
    media_types = [make().media_type for make in ENCODERS.values()]

    @router.post(
        "/v1/audio/speech",
        response_class=StreamingResponse,
        responses=bodies("Speech while it is made.", *media_types, "text/event-stream") | errors(404, 429),
        openapi_extra=body_schema(SpeechRequest),
    )
    async def speech(request: Request) -> Response:
        """Speak; audio is sent while it is made.

        The header ``X-Megatalker-Instructions`` says whether instructions are ``followed``, or ``ignored`` because this
        checkpoint takes none.
        """
        body, ignored = await read_body(request, SpeechRequest, strict=settings.strict)
        if body.model is not None and settings.strict:
            aliases.require_model(body.model)
        asked = body.speech_fields(aliases)
        if body.word_timestamps and body.stream_format != "sse":
            raise InvalidRequestError('word_timestamps come as events; ask for them with "stream_format": "sse"')
        utterance = await HttpUtterance.begin(speaker, body.input, asked, request, word_times=body.word_timestamps)
        headers = utterance.headers(ignored) | {"X-Megatalker-Model": header_value(aliases.model)}
        instructions = speaker.instruct_fate(asked)
        if warnings := speaker.warnings(utterance.stream):
            headers["X-Megatalker-Warnings"] = "; ".join(warnings).encode("ascii", "backslashreplace").decode()
        if instructions is not None:
            headers["X-Megatalker-Instructions"] = instructions
        try:
            if body.stream_format == "sse":
                content = event_body(utterance, body.encoder(), instructions, speed=body.speed)
                media_type = "text/event-stream"
            elif body.stream:
                encoder = body.encoder()
                content, media_type = audio_body(utterance, encoder), encoder.media_type
            else:
                content, size = await whole_file(utterance, body.encoder, request)
                media_type = ENCODERS[body.response_format]().media_type
                headers["Content-Length"] = str(size)
        except BaseException:
            utterance.end()
            raise
        return AudioResponse(content, media_type, headers, settings.send_timeout_s, utterance.end)

    return router
