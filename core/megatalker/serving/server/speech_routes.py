"""Routes that speak over HTTP: OpenAI's ``POST /v1/audio/speech``, and ``POST /tts/stream``."""

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal, TypeVar
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from megatalker.errors import IncompleteSpeechError, InvalidRequestError
from megatalker.prompt.markup.prosody import FASTEST, SLOWEST
from megatalker.serving.audio import SOURCE_TYPE, SYNTHETIC
from megatalker.serving.protocol.leniency import M, Number, read_fields, read_json, voice_by_id
from megatalker.serving.protocol.messages import SampleRate, SpeechFields
from megatalker.serving.protocol.plain_messages import PIECE_S, PlainFields
from megatalker.serving.provenance import SIGNABLE, FileSigner
from megatalker.serving.samples import SampleEncoder, SampleFrames
from megatalker.serving.server.audio_response import (
    AudioResponse,
    BegunSpeech,
    Sign,
    audio_body,
    begin_speech,
    event_body,
    header_value,
    whole_file,
)
from megatalker.serving.server.encoding import (
    BARE_TYPES,
    ENCODERS,
    Encoder,
    ResponseFormat,
    make_encoder,
    rate_of,
)
from megatalker.serving.server.information import Aliases
from megatalker.serving.server.problems import content_responses, error_responses
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.server.telemetry import log_ignored
from megatalker.settings import ServerSettings

SOURCE_MARKS = {"X-Megatalker-Source-Type": SOURCE_TYPE}
"""Headers of synthetic speech."""
SIGNED = {"X-Megatalker-Signed": "c2pa"}
"""Headers of files with a signed manifest."""
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

T = TypeVar("T")


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return FastAPI's ``openapi_extra`` for a route that reads this body by :func:`read_body`."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(
    request: Request, service: SpeechService, model: type[M], *, strict: bool
) -> tuple[M, tuple[str, ...]]:
    """Return the body of a request, and the names of the fields in it that were left out.

    Args:
        request: whose body was not read yet.
        service: in whose threads a long body is read.
        model: what the body holds.
        strict: see :func:`~megatalker.serving.protocol.leniency.read_fields`.

    Raises:
        InvalidRequestError: it holds something else.
        HTTPException: it did not come whole, or is too long.
    """
    message, ignored = await read_fields_of(request, service, partial(read_fields, model, strict=strict))
    log_ignored(ignored)
    return message, ignored


async def read_fields_of(request: Request, service: SpeechService, read: Callable[[Mapping[str, Any]], T]) -> T:
    """Return what ``read`` makes of the fields of a body; raises as :func:`read_body`.

    JSON is found under any content type. Forms are taken as well; a file in one is its content as a ``data:`` URL.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if media_type == MULTIPART:
            async with request.form() as form:
                return read({name: await _field(value) for name, value in form.items()})
        body = await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "the body did not come whole") from None
    return await service.checks.read(len(body), lambda: read(_fields(media_type, body)))


def _fields(media_type: str, body: bytes) -> Mapping[str, Any]:
    if media_type == FORM and not body.lstrip().startswith(b"{"):  # as curl announces JSON
        return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    given = read_json(body) if body.strip() else {}
    if not isinstance(given, dict):
        raise InvalidRequestError(f"the body is {given!r:.60}: it should be an object")
    return given


async def _field(value: str | UploadFile) -> str:
    if isinstance(value, str):
        return value
    content = base64.b64encode(await value.read()).decode()
    return f"data:{value.content_type or 'application/octet-stream'};base64,{content}"


class SpeechRequest(SpeechFields):
    """OpenAI's fields, and those of :class:`~megatalker.serving.protocol.messages.SpeechFields`."""

    input: Annotated[str, Field(json_schema_extra={"minLength": 1})]
    """The text to say."""
    model: str | None = None
    """The model served here or one of its aliases (``GET /v1/models``); it answers to any other name, too, unless the
    server is strict. The header ``X-Megatalker-Model`` tells what served."""
    instructions: str | None = None
    """OpenAI's name for ``instruct``."""
    response_format: ResponseFormat = "mp3"
    sample_rate: SampleRate | None = None
    """Null: 8000 for ``pcm_mulaw`` and ``pcm_alaw``, else 24000. The header ``X-Sample-Rate`` tells it. Opus has no
    22050 and 44100."""
    speed: Annotated[Number, Field(ge=SLOWEST, le=FASTEST)] = 1.0
    """2 takes half the time, at the same pitch."""
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool = True
    """``False`` answers with a whole file when all is said: with its length, and a true header. Events are a stream."""
    word_timestamps: bool = False
    """With ``stream_format`` ``sse``: ``speech.audio.words`` events tell which words were spoken, and when."""

    _voice_by_id = field_validator("voice", mode="before")(voice_by_id)

    def speech_fields(self, aliases: Aliases) -> SpeechFields:
        """Return the request in the words of the engine.

        Raises:
            InvalidRequestError: two instructions.
        """
        if self.instructions is not None and self.instruct is not None:
            raise InvalidRequestError("instructions and instruct mean the same; give one of them")
        fields = {name: getattr(self, name) for name in SpeechFields.model_fields}
        fields |= {"instruct": self.instruct or self.instructions, "voice": aliases.voice(self.voice)}
        return SpeechFields(**fields)

    def encoder(self, file: BinaryIO | None = None, *, comment: str | None = None) -> Encoder:
        """Return an encoder for the format asked for; see :func:`~megatalker.serving.server.encoding.make_encoder`."""
        return make_encoder(self.response_format, rate=self.sample_rate, speed=self.speed, file=file, comment=comment)


def speech_routes(service: SpeechService, settings: ServerSettings, aliases: Aliases) -> APIRouter:
    """The route over this service."""
    router = APIRouter()
    comment, marks = (SYNTHETIC, SOURCE_MARKS) if settings.mark_synthetic else (None, {})
    media_types = [make_encoder(kind).media_type for kind in ENCODERS]
    signer = FileSigner.configured(service.engine.settings.c2pa)

    def sign(kind: ResponseFormat) -> Sign | None:
        if signer is None or kind not in SIGNABLE:
            return None
        return partial(signer.sign, media_type=SIGNABLE[kind])

    @router.post(
        "/v1/audio/speech",
        response_class=StreamingResponse,
        responses=content_responses("Speech while it is made.", *media_types, "text/event-stream")
        | error_responses(404, 429),
        openapi_extra=body_schema(SpeechRequest),
    )
    async def speech(request: Request) -> Response:
        """Speak; audio is sent while it is made.

        The header ``X-Megatalker-Instructions`` says whether instructions are ``followed``, or ``ignored`` because this
        checkpoint takes none.
        """
        body, ignored = await read_body(request, service, SpeechRequest, strict=settings.strict)
        return await answer(body, ignored, request)

    async def answer(body: SpeechRequest, ignored: tuple[str, ...], request: Request) -> Response:
        if body.model is not None and settings.strict:
            aliases.require_model(body.model)
        asked, rate = body.speech_fields(aliases), rate_of(body.response_format, body.sample_rate)
        if body.word_timestamps and body.stream_format != "sse":
            raise InvalidRequestError('word_timestamps come as events; ask for them with "stream_format": "sse"')
        spoken = await begin_speech(service, body.input, asked, request, word_times=body.word_timestamps)
        headers = marks | spoken.headers(rate, ignored) | {"X-Megatalker-Model": header_value(aliases.model)}
        instructions = spoken.session.instruct
        if warnings := spoken.session.warnings:
            headers["X-Megatalker-Warnings"] = "; ".join(warnings).encode("ascii", "backslashreplace").decode()
        if instructions is not None:
            headers["X-Megatalker-Instructions"] = instructions
        try:
            if body.stream_format == "sse":
                content = event_body(spoken, body.encoder(comment=comment), speed=body.speed)
                media_type = "text/event-stream"
            elif body.stream:
                encoder = body.encoder(comment=comment)
                content, media_type = audio_body(spoken, encoder), encoder.media_type
            else:
                signing = sign(body.response_format)
                content, size = await whole_file(spoken, partial(body.encoder, comment=comment), request, signing)
                headers |= {} if signing is None else SIGNED
                media_type = body.encoder().media_type
                headers["Content-Length"] = str(size)
        except BaseException:
            spoken.session.end()
            raise
        return AudioResponse(content, media_type, headers, settings.send_timeout_s, spoken.session.end)

    if settings.get_speech:

        @router.get(
            "/v1/audio/speech",
            response_class=StreamingResponse,
            responses=content_responses("Speech while it is made.", *media_types) | error_responses(404, 429),
        )
        async def speech_of_address(request: Request) -> Response:
            """Speak the text ``input`` of the query, for players that can only open an address. It takes the fields of
            the POST request.
            """
            body, ignored = read_fields(SpeechRequest, dict(request.query_params), strict=settings.strict)
            log_ignored(ignored)
            return await answer(body, ignored, request)

    return router


class PlainSpeechRequest(PlainFields):
    """Text, and how to speak it."""

    model_config = ConfigDict(title="StreamRequest")  # its name in /openapi.json

    text: str


def tts_stream_routes(service: SpeechService, settings: ServerSettings) -> APIRouter:
    """The route over this service."""
    router = APIRouter()
    marks = SOURCE_MARKS if settings.mark_synthetic else {}

    @router.post(
        "/tts/stream",
        response_class=StreamingResponse,
        responses=content_responses("Bare samples, mono.", *BARE_TYPES.values()) | error_responses(404, 429),
        openapi_extra=body_schema(PlainSpeechRequest),
    )
    async def stream(request: Request) -> Response:
        """Speak; each part of the chunked body is 40 ms of speech, sent as soon as it is made."""
        body, ignored = await read_body(request, service, PlainSpeechRequest, strict=settings.strict)
        spoken = await begin_speech(service, body.text, body.speech_fields(), request)
        samples = SampleEncoder(body.format, body.sample_rate)
        headers = marks | spoken.headers(samples.rate, ignored)
        content, media_type = _body(spoken, SampleFrames(samples, PIECE_S)), BARE_TYPES[body.format]
        return AudioResponse(content, media_type, headers, settings.send_timeout_s, spoken.session.end)

    return router


async def _body(speech: BegunSpeech, frames: SampleFrames) -> AsyncIterator[bytes]:
    incomplete: IncompleteSpeechError | None = None
    try:
        async for samples in speech.chunks():
            for piece in frames.push(samples):
                yield piece
    except IncompleteSpeechError as error:
        incomplete = error
    for piece in frames.finish(pad=False):
        yield piece
    if incomplete is not None:
        raise incomplete
