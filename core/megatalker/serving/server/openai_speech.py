"""``POST /v1/audio/speech``: OpenAI's speech API, with our own fields beside its fields."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field, field_validator

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.messages import SpeechFields
from megatalker.serving.server.aliases import Aliases
from megatalker.serving.server.audio_response import AudioResponse, HttpUtterance, audio_body, event_body
from megatalker.serving.server.encoding import ENCODERS, FASTEST, SLOWEST, ResponseFormat, StretchingEncoder
from megatalker.serving.server.openapi import bodies, errors
from megatalker.serving.server.speaker import Speaker
from megatalker.settings import ServerSettings


class SpeechRequest(SpeechFields):
    """OpenAI's fields, and those of :class:`~megatalker.serving.protocol.messages.SpeechFields`."""

    input: Annotated[str, Field(json_schema_extra={"minLength": 1})]
    """What to say."""
    model: str | None = None
    """The model served here or one of its aliases (``GET /v1/models``), or nothing."""
    instructions: str | None = None
    """OpenAI's name for ``instruct``."""
    response_format: ResponseFormat = "mp3"
    speed: Annotated[float, Field(ge=SLOWEST, le=FASTEST)] = 1.0
    """2 takes half the time, at the same pitch."""
    stream_format: Literal["audio", "sse"] = "audio"
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


def speech_routes(speaker: Speaker, settings: ServerSettings, aliases: Aliases) -> APIRouter:
    """The route over this speaker."""
    router = APIRouter()
    media_types = [make().media_type for make in ENCODERS.values()]

    @router.post(
        "/v1/audio/speech",
        response_class=StreamingResponse,
        responses=bodies("Speech while it is made.", *media_types, "text/event-stream") | errors(404, 429),
    )
    async def speech(body: SpeechRequest, request: Request) -> Response:
        """Speak; audio is sent while it is made.

        The header ``X-Megatalker-Instructions`` says whether instructions are ``followed``, or ``ignored`` because this
        checkpoint takes none.
        """
        if body.model is not None:
            aliases.require_model(body.model)
        asked = body.speech_fields(aliases)
        if body.word_timestamps and body.stream_format != "sse":
            raise InvalidRequestError('word_timestamps come as events; ask for them with "stream_format": "sse"')
        utterance = await HttpUtterance.begin(speaker, body.input, asked, request, word_times=body.word_timestamps)
        stream, encoder = utterance.stream, ENCODERS[body.response_format]()
        if body.speed != 1.0:
            encoder = StretchingEncoder(body.speed, encoder)
        headers = {
            "X-Megatalker-Seed": str(stream.seed),
            "X-Megatalker-Backend": stream.backend,
            "X-Sample-Rate": str(SAMPLE_RATE),
        }
        instructions = speaker.instruct_fate(asked)
        if instructions is not None:
            headers["X-Megatalker-Instructions"] = instructions
        if body.stream_format == "audio":
            content, media_type = audio_body(utterance, encoder), encoder.media_type
        else:
            events = event_body(utterance, encoder, instructions, speed=body.speed)
            content, media_type = events, "text/event-stream"
        return AudioResponse(content, media_type, headers, settings.send_timeout_s, utterance.end)

    return router
