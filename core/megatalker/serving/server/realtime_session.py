"""``WS /v1/realtime``: OpenAI's Realtime protocol for speech out. What is spoken is text that the client sends."""

import asyncio
from dataclasses import replace
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.messages import SpeechFields
from megatalker.serving.protocol.realtime_messages import (
    AudioOutput,
    Item,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    RealtimeError,
    ResponseCancel,
    ResponseCreate,
    ResponseFields,
    SessionUpdate,
    SpeechOptionsFields,
    read_message,
    read_realtime_event,
)
from megatalker.serving.server.information import Aliases
from megatalker.serving.server.problems import error_details
from megatalker.serving.server.realtime_events import BETA, ConversationItem, EventWriter, RealtimeOptions, new_id
from megatalker.serving.server.realtime_items import RealtimeItems
from megatalker.serving.server.realtime_response import RealtimeResponse
from megatalker.serving.server.socket_session import SocketSession, log_defect
from megatalker.serving.server.speech_service import SpeechService
from megatalker.settings import ServerSettings


class RealtimeSession(SocketSession):
    """One connection: a conversation of which one response at a time is spoken.

    Args:
        socket: accepted.
        service: speaks.
        settings: the server's.
        aliases: of voices and of the model.
    """

    def __init__(self, socket: WebSocket, service: SpeechService, settings: ServerSettings, aliases: Aliases) -> None:
        super().__init__(socket, service, settings)
        self._aliases, self._id, self._conversation = aliases, new_id("sess"), new_id("conv")
        self._writer = EventWriter(beta=socket.headers.get("openai-beta", "") == BETA)
        self._options = RealtimeOptions()
        self._items = RealtimeItems(self.tell, service.engine.settings.max_text_chars)
        self._active: RealtimeResponse | None = None
        self._asking: str | None = None

    async def serve(self) -> None:
        """Tell the session, and read events until the client goes away."""
        model = self._socket.query_params.get("model")
        if self.settings.strict and model is not None:
            try:
                self._aliases.require_model(model)
            except InvalidRequestError as error:
                await self.refuse(None, error)
                await self._socket.close(1008, "another model was asked for")
                return
        await self.tell("session.created", session=self._shown())
        await super().serve()

    async def handle(self, text: str) -> None:
        """Do what an event asks for.

        Raises:
            InvalidRequestError: it can never work.
        """
        given, self._asking = await self.read(text, read_message)
        match await self.read(text, lambda _: read_realtime_event(given)):
            case SessionUpdate(session=fields):
                self._options = await self._updated(fields, "session")
                await self.tell("session.updated", session=self._shown())
            case ItemCreate(item=item, previous_item_id=before):
                await self._items.create(item, before)
            case ItemRetrieve(item_id=name):
                await self._items.retrieve(name)
            case ItemDelete(item_id=name):
                await self._items.delete(name)
            case ItemTruncate() as event:
                await self._truncate(event)
            case ResponseCreate(response=asked):
                await self._respond(asked or ResponseFields())
            case ResponseCancel(response_id=name):
                await self._cancel(name)
        self._asking = None

    # ---- how to speak

    async def _updated(self, fields: SpeechOptionsFields, where: str) -> RealtimeOptions:
        """Return the session's options with these on top; ``where`` they stand is told in errors."""
        output = (fields.audio and fields.audio.output) or AudioOutput()
        beta = output.voice is None
        voice = fields.voice if beta else output.voice
        changes: dict[str, Any] = {
            "voice": voice,
            "format": output.format or fields.output_audio_format,
            "speed": output.speed or fields.speed,
            "instructions": fields.instructions,
            "own": fields.megatalker,
        }
        meant = self._aliases.voice(voice)
        if meant is not None:
            try:
                await self._service.check(SpeechFields(voice=meant))
            except InvalidRequestError as error:
                field = f"{where}.voice" if beta else f"{where}.audio.output.voice"
                raise RealtimeError(str(error), field, error_details(error)["code"]) from error
        return replace(self._options, **{name: value for name, value in changes.items() if value is not None})

    def _speech_fields(self, options: RealtimeOptions) -> SpeechFields:
        voice = options.own.voice if options.voice is None else options.voice
        wanted = {"voice": self._aliases.voice(voice), "instruct": options.instructions or options.own.instruct}
        return options.own.model_copy(update=wanted)

    def _shown(self) -> dict[str, Any]:
        options = self._options
        follows = self._service.engine.checkpoint.config.takes_instruct
        shown: dict[str, Any] = {
            "type": "realtime",
            "object": "realtime.session",
            "id": self._id,
            "model": self._aliases.model,
            "output_modalities": ["audio"],
            "instructions": options.instructions or "",
            "audio": {"input": None, "output": options.output()},
            "tools": [],
            "tool_choice": "none",
            "megatalker": {"instructions": "followed" if follows else "ignored", "seed": options.own.seed},
        }
        if self._writer.beta:
            names = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
            shown |= {"modalities": ["text", "audio"], "voice": options.voice, "speed": options.speed}
            shown |= {"output_audio_format": names[options.format.type]}
        return shown

    # ---- the conversation

    def _given(self, item: Item, field: str) -> ConversationItem:
        return self._items.find(item.id or "", field) if item.type == "item_reference" else ConversationItem(item)

    async def _truncate(self, event: ItemTruncate) -> None:
        item = self._items.heard(event)
        if self._active is not None and self._active.item is item:
            await self._cancel(None)
        await self._items.truncate(item, event)

    # ---- responses

    async def _respond(self, asked: ResponseFields) -> None:
        if self._active is not None:
            raise RealtimeError(
                f"response {self._active.id} is spoken; wait for response.done, or send response.cancel",
                None,
                "conversation_already_has_active_response",
            )
        items = self._items.unspoken()
        if asked.input is not None:
            items = [self._given(item, f"response.input.{at}.id") for at, item in enumerate(asked.input)]
        if not any(item.text.strip() for item in items):
            raise RealtimeError(
                "there is nothing to say: send conversation.item.create with a text first, or response.input; "
                "instructions say how to speak, not what",
                "response.input",
                "nothing_to_say",
            )
        options = await self._updated(asked, "response")
        for item in items:
            item.spoken = True
        add = None if asked.conversation == "none" else self._items.add
        response = RealtimeResponse(items, options, self._speech_fields(options), asked.metadata, add)
        self._active = response
        response.task = self._tasks.create_task(self._speak(response))

    async def _speak(self, response: RealtimeResponse) -> None:
        try:
            await response.speak(self._service, self.tell)
            await self._end(response, None)
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self.refuse(response.id, error)
        finally:
            response.close()

    async def _end(self, response: RealtimeResponse, error: Exception | None) -> None:
        told = await response.end(self.tell, error)
        self._active = None
        await self.tell("response.done", response={**told, "conversation_id": self._conversation})

    async def _cancel(self, name: str | None) -> None:
        """Cancel the response that is spoken, and wait until its end was told."""
        active = self._active
        if active is None or name not in (None, active.id):
            which = "" if name is None else f" {name!r:.80}"
            raise RealtimeError(f"no response{which} is spoken", "response_id", "response_cancel_not_active")
        active.cancel()
        if active.task is not None:
            await asyncio.wait([active.task])

    # ---- to the client

    async def send_failure(self, utterance: str | None, error: Exception) -> None:
        """Send an error: of a message as ``error``, of the response as its end."""
        log_defect(error)
        if utterance is not None and self._active is not None:
            await self._end(self._active, error)
            return
        asking, self._asking = self._asking, None
        details = error_details(error)
        code = error.code if isinstance(error, RealtimeError) else details["code"]
        await self.tell("error", error={**details, "code": code, "event_id": asking})

    async def tell(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        if (message := self._writer.write(kind, fields)) is not None:
            await self.send(message)
