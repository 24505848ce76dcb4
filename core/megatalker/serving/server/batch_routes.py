"""``POST /v1/audio/speech/batch``: several texts in a request, each answered with a whole file, as vLLM-Omni has it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from megatalker.errors import CapacityError, MegatalkerError
from megatalker.prompt.markup.prosody import FASTEST, SLOWEST
from megatalker.serving.audio import SYNTHETIC
from megatalker.serving.protocol.leniency import FieldError, Number, read_fields
from megatalker.serving.protocol.messages import SampleRate, SpeechFields
from megatalker.serving.server.audio_response import (
    AudioResponse,
    BegunSpeech,
    begin_speech,
    unless_gone,
    whole_file,
)
from megatalker.serving.server.callers import RateLimitError, current_request
from megatalker.serving.server.encoding import ResponseFormat
from megatalker.serving.server.information import Aliases
from megatalker.serving.server.problems import error_responses, problem
from megatalker.serving.server.speech_routes import SOURCE_MARKS, SpeechRequest, read_fields_of
from megatalker.serving.server.speech_service import SpeechService
from megatalker.serving.server.telemetry import log_ignored
from megatalker.settings import ServerSettings

MOST_ITEMS = 32
"""Texts of a request."""
AT_ONCE = 4
"""Texts of a request that are spoken at a time, so that a batch takes a share like other requests."""
STREAMED_FIELDS = ("stream", "stream_format", "word_timestamps")


class BatchDefaults(SpeechFields):
    """Fields that hold for all items that do not say otherwise."""

    model: str | None = None
    instructions: str | None = None
    response_format: ResponseFormat = "wav"
    sample_rate: SampleRate | None = None
    speed: Annotated[Number, Field(ge=SLOWEST, le=FASTEST)] = 1.0


@dataclass
class SpokenItem:
    """The result of an item."""

    index: int
    media_type: str = ""
    audio: AsyncIterator[bytes] | None = None
    error: MegatalkerError | None = None


@dataclass
class _Batch:
    """Items that are being spoken."""

    service: SpeechService
    aliases: Aliases
    comment: str | None
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    active: int = 0
    """Items that are being spoken, or try to begin."""
    waiting: int = 0
    """Those of them that wait for the end of another one."""
    task: "asyncio.Task[Any] | None" = None
    gone: bool = False

    def cancel(self) -> None:
        """The client is gone."""
        self.gone = True
        if self.task is not None:
            self.task.cancel()

    async def speak_all(self, items: list[SpeechRequest]) -> list[SpokenItem]:
        """Return a result for each item; none where the client is gone."""
        self.task = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as tasks:
                spoken = [tasks.create_task(self._speak(index, item)) for index, item in enumerate(items)]
        except asyncio.CancelledError:
            if self.gone:
                return []
            raise
        return [task.result() for task in spoken]

    async def _speak(self, index: int, item: SpeechRequest) -> SpokenItem:
        async with self.room:
            self.active += 1
            try:
                return await self._spoken(index, item)
            except MegatalkerError as error:
                return SpokenItem(index, error=error)
            finally:
                self.active -= 1
                self.ended.set()

    async def _spoken(self, index: int, item: SpeechRequest) -> SpokenItem:
        spoken = await self._begun(item)
        try:
            audio, _ = await whole_file(spoken, partial(item.encoder, comment=self.comment), None)
        finally:
            spoken.session.end()
        return SpokenItem(index, item.encoder().media_type, audio)

    async def _begun(self, item: SpeechRequest) -> BegunSpeech:
        """Begin to speak; where the caller may have no further stream, when another item of this batch has ended."""
        asked = item.speech_fields(self.aliases)
        while True:
            self.ended.clear()
            try:
                return await begin_speech(self.service, item.input, asked, None)
            except RateLimitError:
                raise
            except CapacityError:
                if self.waiting + 1 >= self.active:  # nothing of this batch would end
                    raise
            self.waiting += 1
            try:
                await self.ended.wait()
            finally:
                self.waiting -= 1


_RESULT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "index": {"type": "integer"},
        "status": {"enum": ["success", "error"]},
        "media_type": {"type": "string"},
        "audio_data": {"type": "string", "contentEncoding": "base64"},
        "error": {"type": "string"},
    },
    "required": ["index", "status"],
}
_COUNTS = ("total", "succeeded", "failed")
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A result for each item.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "results": {"type": "array", "items": _RESULT}}
                    | {name: {"type": "integer"} for name in _COUNTS},
                    "required": ["id", "results", *_COUNTS],
                }
            }
        },
    }
}


def batch_routes(service: SpeechService, settings: ServerSettings, aliases: Aliases) -> APIRouter:
    """The route over this service."""
    router = APIRouter()
    comment, marks = (SYNTHETIC, SOURCE_MARKS) if settings.mark_synthetic else (None, {})

    @router.post(
        "/v1/audio/speech/batch",
        responses={**_ANSWER, **error_responses(404, 429)},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _schema()}}}},
    )
    async def batch(request: Request) -> Response:
        """Speak up to 32 texts, each into a whole file. The other fields of the body hold for all items, and an item's
        own fields go before them. An item that cannot be spoken is an error in its result, and the others are spoken.
        """
        items = await read_fields_of(request, service, partial(_items, strict=settings.strict))
        if settings.strict:
            for item in items:
                if item.model is not None:
                    aliases.require_model(item.model)
        running = _Batch(service, aliases, comment)
        results = await unless_gone(running.speak_all(items), running.cancel, request)
        return AudioResponse(
            _body(current_request().id, results), "application/json", dict(marks), settings.send_timeout_s, lambda: None
        )

    return router


def _schema() -> dict[str, Any]:
    schema, item = BatchDefaults.model_json_schema(), SpeechRequest.model_json_schema()
    item["properties"] = {name: one for name, one in item["properties"].items() if name not in STREAMED_FIELDS}
    schema["properties"]["items"] = {"type": "array", "minItems": 1, "maxItems": MOST_ITEMS, "items": item}
    return schema | {"required": ["items"], "title": "BatchSpeechRequest"}


def _items(given: Mapping[str, Any], *, strict: bool) -> list[SpeechRequest]:
    """Return the items of a body, with what holds for all of them.

    Raises:
        FieldError: a field is wrong, which the message names; nothing is spoken then.
    """
    listed = given.get("items")
    if not isinstance(listed, list) or not 0 < len(listed) <= MOST_ITEMS:
        found = f"a list of {len(listed)}" if isinstance(listed, list) else f"{listed!r:.60}"
        raise FieldError(f"items is {found}, expected a list of 1 to {MOST_ITEMS} objects with input", "items")
    shared, ignored = read_fields(
        BatchDefaults, {name: value for name, value in given.items() if name != "items"}, strict=strict
    )
    defaults = {name: getattr(shared, name) for name in shared.model_fields_set | {"response_format"}}
    items = []
    for index, one in enumerate(listed):
        if not isinstance(one, dict):
            raise FieldError(f"items.{index} is {one!r:.60}, expected an object with input", f"items.{index}")
        try:
            item, more = read_fields(SpeechRequest, one, strict=strict)
        except FieldError as error:
            raise FieldError(f"items.{index}: {error}", f"items.{index}.{error.field}") from error
        streamed = [name for name in STREAMED_FIELDS if name in item.model_fields_set]
        if streamed:
            raise FieldError(
                f"items.{index}: {streamed[0]} is for POST /v1/audio/speech; a batch answers with whole files",
                f"items.{index}.{streamed[0]}",
            )
        if not item.input:
            raise FieldError(f"items.{index}: input is empty, expected the text to say", f"items.{index}.input")
        ignored += more
        items.append(item.model_copy(update={n: v for n, v in defaults.items() if n not in item.model_fields_set}))
    log_ignored(ignored)
    return items


async def _body(batch_id: str, results: list[SpokenItem]) -> AsyncIterator[bytes]:
    """Yield the answer in pieces: the files of a batch may be too large for memory."""
    yield json.dumps({"id": batch_id})[:-1].encode() + b', "results": ['
    for result in results:
        start = b", " if result.index else b""
        if result.error is not None:
            told = {"index": result.index, "status": "error", "error": problem(result.error).message}
            yield start + json.dumps(told).encode()
            continue
        assert result.audio is not None
        told = {"index": result.index, "status": "success", "media_type": result.media_type}
        yield start + json.dumps(told)[:-1].encode() + b', "audio_data": "'
        rest = b""
        async for data in result.audio:
            rest += data
            whole = len(rest) - len(rest) % 3
            yield base64.b64encode(rest[:whole])
            rest = rest[whole:]
        yield base64.b64encode(rest) + b'"}'
    failed = sum(result.error is not None for result in results)
    counts = {"total": len(results), "succeeded": len(results) - failed, "failed": failed}
    yield b"], " + json.dumps(counts)[1:].encode()
