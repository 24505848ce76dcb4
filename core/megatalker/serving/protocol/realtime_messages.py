"""Messages that clients send to ``/v1/realtime``: OpenAI's Realtime events, as far as they concern speech.

A server speaks text that clients send; an agent listens to clients, too, and takes further events.

The fields of the beta protocol (``voice``, ``output_audio_format``, ``modalities``) are taken as well. Unknown fields
mean nothing here and are left out, except in ``megatalker``, which is ours.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.leniency import (
    FieldError,
    Integer,
    Number,
    known_word,
    read_fields,
    read_json,
    voice_by_id,
)
from megatalker.serving.protocol.messages import MAX_ID_LENGTH, SampleRate, SpeechFields, UtteranceId

MOST_ITEMS = 128
"""Items of a conversation that are kept, and items in the ``input`` of a response."""
MOST_PARTS = 64
"""Parts of an item."""
MOST_METADATA = 16
MOST_TOOLS = 128
MOST_ARGUMENTS = 16_384
"""Characters of the arguments of a function call."""
RealtimeFormat = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
BARE_FORMATS: dict[RealtimeFormat, Literal["pcm", "pcm_mulaw", "pcm_alaw"]] = {
    "audio/pcm": "pcm",
    "audio/pcmu": "pcm_mulaw",
    "audio/pcma": "pcm_alaw",
}
"""OpenAI's names of formats, and ours."""


class RealtimeError(FieldError):
    """An event that cannot be obeyed, with a word for programs such as ``unsupported``."""

    def __init__(self, message: str, field: str | None, code: str) -> None:
        super().__init__(message, field)
        self.code = code


class RealtimeFields(BaseModel):
    """Part of an event; unknown fields are left out, and nothing is converted."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, use_attribute_docstrings=True)


def _format_name(value: object) -> object:
    ours = known_word(value, tuple(BARE_FORMATS.values())) if isinstance(value, str) else None
    return next((name for name, bare in BARE_FORMATS.items() if bare == ours), value)


def _format_object(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


class AudioFormat(RealtimeFields):
    """Bare samples: 16-bit at 24 kHz, or G.711 at 8 kHz, unless another rate is asked for."""

    type: Annotated[RealtimeFormat, BeforeValidator(_format_name)] = "audio/pcm"
    rate: SampleRate | None = None


def _with_audio(modalities: list[str]) -> list[str]:
    if "audio" not in modalities:
        raise ValueError("expected 'audio' among them: this server speaks")
    return modalities


RealtimeVoice = Annotated[str, BeforeValidator(voice_by_id)]
AnyFormat = Annotated[AudioFormat, BeforeValidator(_format_object)]
Speed = Annotated[Number, Field(ge=0.25, le=4.0)]
Modalities = Annotated[list[str], Field(max_length=MOST_METADATA), AfterValidator(_with_audio)]


class AudioOutput(RealtimeFields):
    """How speech should sound; what is absent stays as it is."""

    format: AnyFormat | None = None
    voice: RealtimeVoice | None = None
    speed: Speed | None = None


class AudioFields(RealtimeFields):
    """Only what comes out: audio that is sent to the server is not taken."""

    output: AudioOutput | None = None


class SpeechOptionsFields(RealtimeFields):
    """How to speak, in a session or in one response."""

    audio: AudioFields | None = None
    voice: RealtimeVoice | None = None
    """Beta, as are the next two: ``audio.output`` goes before them."""
    output_audio_format: AnyFormat | None = None
    speed: Speed | None = None
    instructions: str | None = None
    """How to speak, never what to say: followed by checkpoints that take instructions."""
    output_modalities: Modalities | None = None
    modalities: Modalities | None = None
    megatalker: SpeechFields | None = None
    """Ours: ``seed``, ``language``, ``markup`` and the other fields of :class:`SpeechFields`."""


class SessionFields(SpeechOptionsFields):
    """A session."""

    type: Literal["realtime"] = "realtime"


class ItemPart(RealtimeFields):
    """A part of a message that is text, or has a transcript."""

    type: Literal["input_text", "output_text", "text", "input_audio", "output_audio", "audio"]
    text: str | None = None
    transcript: str | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if self.text is None and self.transcript is None:
            raise ValueError("expected text, or the transcript of audio")
        return self


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Item(RealtimeFields):
    """An item of a conversation, or a reference to one."""

    type: Literal["message", "function_call", "function_call_output", "item_reference"]
    id: Annotated[UtteranceId, Field(min_length=1)] | None = None
    role: Literal["user", "assistant", "system"] | None = None
    content: Annotated[list[ItemPart], Field(max_length=MOST_PARTS)] = []
    call_id: UtteranceId | None = None
    name: FunctionName | None = None
    arguments: Annotated[str, Field(max_length=MOST_ARGUMENTS)] | None = None
    output: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for needed in _NEEDED[self.type]:
            if getattr(self, needed) is None:
                raise ValueError(f"{needed} is missing, which a {self.type} has")
        return self

    @property
    def text(self) -> str:
        """Its text: parts stand on a line of their own each."""
        if self.type == "function_call_output":
            return self.output or ""
        return "\n".join(part.text if part.text is not None else part.transcript or "" for part in self.content)


_NEEDED = {
    "message": ["role"],
    "function_call": ["call_id", "name", "arguments"],
    "function_call_output": ["output"],
    "item_reference": ["id"],
}


class SessionUpdate(RealtimeFields):
    """Speak like this from the next response on."""

    session: SessionFields


class ItemCreate(RealtimeFields):
    """Add an item to the conversation."""

    item: Item
    previous_item_id: str | None = None
    """Behind this item; ``root``: in front of all; absent: at the end."""


class ItemNamed(RealtimeFields):
    """Concerns one item."""

    item_id: str


class ItemRetrieve(ItemNamed):
    """Tell the item."""


class ItemDelete(ItemNamed):
    """Remove the item."""


class ItemTruncate(ItemNamed):
    """Only this much of the item's audio was played."""

    content_index: Integer = 0
    audio_end_ms: Annotated[Number, Field(ge=0)]


class ResponseFields(SpeechOptionsFields):
    """A response."""

    input: Annotated[list[Item], Field(max_length=MOST_ITEMS)] | None = None
    """Speak these instead of the items of the conversation that were not spoken yet."""
    conversation: str | None = None
    """``none``: what is spoken is not added to the conversation."""
    tools: list[Any] | None = None
    tool_choice: Any = None
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], str], Field(max_length=MOST_METADATA)] | None = None
    """Repeated in events of the response."""


class ResponseCreate(RealtimeFields):
    """Speak."""

    response: ResponseFields | None = None


class ResponseCancel(RealtimeFields):
    """End the response that is spoken."""

    response_id: str | None = None


# ---- to an agent, which listens


class TurnDetection(RealtimeFields):
    """The server finds out when somebody has finished; its numbers are the server's own."""

    type: Literal["server_vad", "semantic_vad"]
    create_response: Literal[True] = True
    interrupt_response: Literal[True] = True


class AudioInput(RealtimeFields):
    """How a client is heard; what is absent stays as it is."""

    format: AnyFormat | None = None
    turn_detection: TurnDetection | None = None
    """``None``, where it is given: the client says when by ``input_audio_buffer.commit``."""


class HeardAudioFields(AudioFields):
    """Audio in both directions."""

    input: AudioInput | None = None


class FunctionChoice(RealtimeFields):
    """The language model must call this function."""

    type: Literal["function"]
    name: FunctionName


class FunctionTool(FunctionChoice):
    """A function of the client, which the language model may call."""

    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of its arguments, for the language model."""


ToolChoice = Literal["auto", "none", "required"]


class AgentSessionFields(SessionFields):
    """A session of an agent."""

    audio: HeardAudioFields | None = None
    input_audio_format: AnyFormat | None = None
    """Beta, as is the next one: ``audio.input`` goes before them."""
    turn_detection: TurnDetection | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | FunctionChoice | None = None


class AgentSessionUpdate(RealtimeFields):
    """Listen and speak like this from now on."""

    session: AgentSessionFields


class AudioAppend(RealtimeFields):
    """More audio of the client, in base64."""

    audio: str


class AudioCommit(RealtimeFields):
    """The audio that was appended is a message."""


class AudioClear(RealtimeFields):
    """Forget the audio that was appended."""


RealtimeEvent = SessionUpdate | ItemCreate | ItemRetrieve | ItemDelete | ItemTruncate | ResponseCreate | ResponseCancel
AgentEvent = RealtimeEvent | AgentSessionUpdate | AudioAppend | AudioCommit | AudioClear
_KINDS: dict[str, type[RealtimeEvent]] = {
    "session.update": SessionUpdate,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}
_AGENT_KINDS: dict[str, type[AgentEvent]] = {
    **_KINDS,
    "session.update": AgentSessionUpdate,
    "input_audio_buffer.append": AudioAppend,
    "input_audio_buffer.commit": AudioCommit,
    "input_audio_buffer.clear": AudioClear,
}


def read_message(text: str) -> tuple[Mapping[str, Any], str | None]:
    """Return a client's message, and the ``event_id`` that an error about it repeats.

    Raises:
        InvalidRequestError: it is no JSON object.
    """
    given = read_json(text)
    if not isinstance(given, dict):
        raise InvalidRequestError(f"the message is {given!r:.60}: it should be an object")
    name = given.get("event_id")
    return given, name[:MAX_ID_LENGTH] if isinstance(name, str) else None


def read_realtime_event(given: Mapping[str, Any]) -> RealtimeEvent:
    """Return a client's event.

    Raises:
        RealtimeError: this server has no such event.
        InvalidRequestError: a field is missing or has a wrong value; or ``type`` is missing.
    """
    return _read(given, _KINDS, "this server speaks text that clients send; it")


def read_agent_event(given: Mapping[str, Any]) -> AgentEvent:
    """Return an event that a client sends to an agent; raises as :func:`read_realtime_event`."""
    return _read(given, _AGENT_KINDS, "this agent")


Event = TypeVar("Event", bound=RealtimeFields)


def _read(given: Mapping[str, Any], kinds: Mapping[str, type[Event]], taker: str) -> Event:
    kind = given.get("type")
    if not isinstance(kind, str):
        raise InvalidRequestError(f"type is {kind!r:.60}, expected one of {', '.join(map(repr, kinds))}")
    if kind not in kinds:
        raise RealtimeError(f"{kind!r:.60} is not supported: {taker} takes {', '.join(kinds)}", "type", "unsupported")
    event, _ = read_fields(kinds[kind], given, strict=True)
    return event
