"""JSON messages of ``/v1/speak``: what a client may say and what the server answers.

Every message names its utterance by ``id``, so that many share one connection. An utterance begins with ``open`` and
ends with exactly one ``done`` or ``error`` event that carries its id. An ``error`` whose id is null concerns a message
that was refused; it ends nothing. Audio comes as binary messages (:mod:`megatalker.serving.protocol.packets`).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.outputs import (
    BackendSwitch,
    Continuation,
    EndReason,
    FinishReason,
    ReachedMark,
    StreamEnd,
)
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.errors import InvalidRequestError, MegatalkerError, explain_validation, named_error
from megatalker.serving.audio import from_code_bytes, to_code_bytes
from megatalker.serving.protocol.facts import ServerFacts
from megatalker.serving.protocol.leniency import MAX_KEYS, Integer, Number, read_fields, read_json
from megatalker.serving.samples import SAMPLE_RATES, SampleFormat
from megatalker.settings import Markup, Normalize

MAX_ID_LENGTH = 64

UtteranceId = Annotated[str, Field(max_length=MAX_ID_LENGTH)]
InstructFate = Literal["followed", "ignored"]
"""Whether an instruction is followed: some checkpoints take none."""


REFUSED_TEXT = "text of utterance"
"""The message of an error begins like this where it concerns a piece of text; its utterance goes on without it."""


def _usual(rate: int) -> int:
    if rate not in SAMPLE_RATES:
        raise ValueError(f"expected one of {', '.join(map(str, SAMPLE_RATES))}")
    return rate


SampleRate = Annotated[Integer, AfterValidator(_usual), Field(json_schema_extra={"enum": list(SAMPLE_RATES)})]
"""Samples a second that a request may ask for."""
MOST_CAST = 64
"""Voices by name in a request."""
MOST_REQUEST_WORDS = 1000
"""Words of a lexicon in a request, each table counted as one."""
RequestWords = Annotated[dict[str, str], Field(max_length=MOST_REQUEST_WORDS)]
RequestLexicon = Annotated[dict[str, str | RequestWords], Field(max_length=MOST_REQUEST_WORDS)]


class Message(BaseModel):
    """Unknown keys are refused by name; nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def to_json(self) -> str:
        """The message as it is sent; half a character of text, which the next piece may complete, is escaped."""
        try:
            return self.model_dump_json()
        except PydanticSerializationError:
            return json.dumps(self.model_dump())


class SpeechFields(Message):
    """How to speak; the meaning is that of the arguments of :meth:`megatalker.engine.Engine.speak`."""

    voice: str | None = None
    """A speaker of the checkpoint, a voice the server keeps (``GET /v1/voices``), or a mix of them:
    ``robin:0.6+mina:0.4``."""
    voice_file: str | None = None
    """A voice of the client's own instead: the content of a file made by ``Voice.save``, in base64."""
    ref_audio: str | None = None
    """A recording to clone instead, for ``base`` checkpoints: an audio file in base64, plain or as a ``data:`` URL. It
    goes before ``voice``."""
    ref_text: str | None = None
    """Every word that is said in ``ref_audio``, for in-context cloning; without, only how it sounds is cloned."""
    x_vector_only_mode: bool | None = None
    """Clone only how ``ref_audio`` sounds, whatever ``ref_text`` says."""
    language: str | None = None
    instruct: str | None = None
    sampling: Annotated[dict[str, Any], Field(max_length=MAX_KEYS)] | None = None
    """Fields of :class:`~megatalker.sampling.SamplingParams`; those left out are the checkpoint's own."""
    seed: Annotated[Integer, Field(ge=0, lt=2**64)] | None = None
    layout: Literal["auto", "upfront", "interleaved"] = "auto"
    max_frames: Annotated[Integer, Field(ge=1)] | None = None
    max_ahead_s: Annotated[Number, Field(gt=0)] | None = None
    clean_text: bool = True
    """``false``: the text goes to the model as it is; pieces that cannot be spoken are refused."""
    normalize: Normalize | None = None
    """``on``: numbers, dates, amounts, units, addresses and abbreviations are written out in words. By default the
    server's setting."""
    lexicon: RequestLexicon | None = None
    """Respellings by word, and tables of them by language; they go before those of the voice and of the server."""
    markup: Markup | None = None
    """``tags`` or ``ssml``: the text holds pauses, marks, voices and spoken forms. By default the server's setting."""
    cast: Annotated[dict[str, str], Field(max_length=MOST_CAST)] | None = None
    """Voices as in ``voice``, by the names that a text in markup gives them."""
    cast_files: Annotated[dict[str, str], Field(max_length=MOST_CAST)] | None = None
    """The same for voices as in ``voice_file``."""


class SegmentEnd(Message):
    """A segment of the text is over; see :class:`megatalker.engine.speech.outputs.StreamEnd`."""

    frame: Annotated[Integer, Field(ge=0)]
    """Frames of the utterance before it."""
    reason: EndReason

    @classmethod
    def of(cls, end: StreamEnd) -> Self:
        """Return the message for an end that the engine reports."""
        return cls(frame=end.frame, reason=end.reason)

    def end(self) -> StreamEnd:
        """Return the end as the engine reports it."""
        return StreamEnd(self.frame, self.reason)


class Said(Message):
    """All that another server has said of an utterance, which goes on with the frame that follows."""

    codes: str
    """The codes of all its chunks, in base64: unsigned 16-bit, little-endian, frame by frame."""
    ends: list[SegmentEnd] = []
    """Those of its ``ends`` events, in order."""
    ahead_s: Annotated[Number, Field(ge=0)] = 0.0
    """Seconds of audio that the listener has in hand."""
    silence: Annotated[Integer, Field(ge=0)] = 0
    """Samples, at 24 kHz, of its chunks without frames."""
    marks: Annotated[Integer, Field(ge=0)] = 0
    """Marks of its ``marks`` events."""
    heard: Annotated[Integer, Field(ge=0)] | None = None
    """Samples, at 24 kHz, of all its chunks, where markup set a rate."""

    @classmethod
    def of(cls, said: Continuation) -> Self:
        """Return the message that says this."""
        ends = [SegmentEnd.of(end) for end in said.ends]
        codes = b64encode(to_code_bytes(said.codes)).decode()
        return cls(
            codes=codes, ends=ends, ahead_s=said.ahead_s, silence=said.silence, marks=said.marks, heard=said.heard
        )

    def continuation(self, groups: int) -> Continuation:
        """Return it for the engine of a checkpoint with this many code groups; raises ``InvalidRequestError``."""
        try:
            codes = from_code_bytes(b64decode(self.codes, validate=True), groups)
        except ValueError as error:
            raise InvalidRequestError(
                f"after.codes cannot be read: {error}; expected base64 of {groups} unsigned 16-bit numbers a frame"
            ) from error
        ends = tuple(end.end() for end in self.ends)
        return Continuation(codes, ends, self.ahead_s, self.silence, self.marks, self.heard)


class Open(SpeechFields):
    """Begin an utterance. Without ``text``, text follows in ``text`` messages until ``finish``."""

    type: Literal["open"] = "open"
    id: UtteranceId = ""
    text: str | None = None
    format: SampleFormat = "s16le"
    sample_rate: SampleRate | None = None
    """Null: 8000 for ``pcm_mulaw`` and ``pcm_alaw``, else 24000."""
    return_codes: bool = False
    word_times: bool = False
    """``words`` events tell which words were spoken, and when."""
    resumable: bool = False
    """``ends`` events tell what ``after`` needs at another server."""
    after: Said | None = None
    """Another server has said this much of the same request, with the same ``seed``. Text that was fed is fed again."""


class Text(Message):
    """More text of an utterance."""

    type: Literal["text"] = "text"
    id: UtteranceId = ""
    text: str


class Finish(Message):
    """The utterance's text is complete."""

    type: Literal["finish"] = "finish"
    id: UtteranceId = ""


class CancelMessage(Message):
    """End the utterance now."""

    type: Literal["cancel"] = "cancel"
    id: UtteranceId = ""


class Opened(Message):
    """The utterance was accepted."""

    type: Literal["opened"] = "opened"
    id: UtteranceId
    sample_rate: int
    format: SampleFormat
    backend: str
    codec: str
    seed: int
    warnings: Annotated[tuple[str, ...], Field(exclude_if=lambda texts: not texts)] = ()
    """Reasons why ``ref_audio`` or ``ref_text`` is a poor reference."""
    instruct: InstructFate | None = None
    ignored: Annotated[tuple[str, ...], Field(exclude_if=lambda names: not names)] = ()
    """Fields of the request that mean nothing here."""


class Switched(Message):
    """The utterance moved to another backend; see :class:`megatalker.engine.BackendSwitch`."""

    type: Literal["switched"] = "switched"
    id: UtteranceId
    kind: Literal["talker", "codec"]
    origin: str
    target: str
    reason: str
    frame: int

    @classmethod
    def from_switch(cls, utterance: str, switch: BackendSwitch) -> Self:
        """Return the event for a switch of the engine."""
        return cls(id=utterance, **asdict(switch))

    def switch(self) -> BackendSwitch:
        """Return the switch as the engine reports it."""
        return BackendSwitch(**self.model_dump(exclude={"type", "id"}))


class WordTime(Message):
    """A word that was spoken, and when."""

    word: str
    """The spoken word as the clean text has it, punctuation included."""
    before: str
    """Text between the previous word and this one; ``before + word`` of all words is the clean text."""
    start: float
    """Seconds of the utterance's audio."""
    end: float
    joined: bool
    """It stands in a run without spaces, such as Chinese."""

    @classmethod
    def of(cls, word: SpokenWord, *, speed: float = 1.0) -> Self:
        """Return the message for a word of the engine, in milliseconds' precision; ``speed`` divides its times."""
        start, end = (round(seconds / speed, 3) for seconds in (word.begins_s, word.ends_s))
        return cls(word=word.text, before=word.before, start=start, end=end, joined=word.joined)

    def spoken(self, *, estimated: bool) -> SpokenWord:
        """Return the word as the engine reports it."""
        return SpokenWord(self.word, self.start, self.end, self.before, self.joined, estimated)


class Words(Message):
    """Words whose audio has been sent, in order."""

    type: Literal["words"] = "words"
    id: UtteranceId
    words: tuple[WordTime, ...]
    estimated: bool = True
    """A time among them is an estimate: the model tells none, and no aligner has found it in the audio."""


class MarkPlace(Message):
    """A mark of the text, and where it lies in the audio."""

    name: str
    sample: int
    """Samples of the utterance before it, at 24 kHz."""
    time: float
    """The same in seconds."""

    @classmethod
    def of(cls, mark: ReachedMark, *, speed: float = 1.0) -> Self:
        """Return the message for a mark that the engine reports; ``speed`` divides its place."""
        sample = round(mark.sample / speed)
        return cls(name=mark.name, sample=sample, time=round(sample / SAMPLE_RATE, 6))

    def reached(self) -> ReachedMark:
        """Return the mark as the engine reports it."""
        return ReachedMark(self.name, self.sample)


class Marks(Message):
    """Marks of the text that lie in the next chunk, which has no frames."""

    type: Literal["marks"] = "marks"
    id: UtteranceId
    marks: tuple[MarkPlace, ...]


class SegmentEnds(Message):
    """Segments that are over in the next chunk."""

    type: Literal["ends"] = "ends"
    id: UtteranceId
    ends: list[SegmentEnd]


class Done(Message):
    """The utterance is over; every chunk of it has been sent."""

    type: Literal["done"] = "done"
    id: UtteranceId
    finish_reason: FinishReason
    facts: ServerFacts


class Problem(Message):
    """An error by name: those of :mod:`megatalker.errors`, or ``InternalError``."""

    type: str
    message: str
    retry_after_s: float | None = None
    """Seconds after which to try again; null where waiting does not help."""

    def exception(self) -> MegatalkerError:
        """The error to raise at the other end."""
        return named_error(self.type, self.message, self.retry_after_s)


class Failed(Message):
    """The utterance ended with an error; or, without an id, a message was refused."""

    type: Literal["error"] = "error"
    id: UtteranceId | None
    error: Problem


Request = Open | Text | Finish | CancelMessage
M = TypeVar("M", bound=Message)
Event = Opened | Switched | Words | Marks | SegmentEnds | Done | Failed

_KINDS: dict[object, type[Request]] = {"open": Open, "text": Text, "finish": Finish, "cancel": CancelMessage}
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])


def read_request(text: str, *, strict: bool = False) -> tuple[Request, tuple[str, ...]]:
    """Return a client's message, and the names of the fields in it that were left out.

    Args:
        text: JSON.
        strict: see :func:`~megatalker.serving.protocol.leniency.read_fields`.

    Raises:
        InvalidRequestError: it is something else.
    """
    return read_message(text, _KINDS, strict=strict)


def read_message(text: str, kinds: Mapping[object, type[M]], *, strict: bool) -> tuple[M, tuple[str, ...]]:
    """Return the message of one of these kinds, told by its ``type``; as :func:`read_request` otherwise."""
    given = read_json(text)
    if not isinstance(given, dict):
        raise InvalidRequestError(f"the message is {given!r:.60}: it should be an object")
    kind = given.get("type")
    model = kinds.get(kind) if isinstance(kind, str) else None
    if model is None:
        what = "type is missing" if kind is None else f"type is {kind!r:.60}"
        raise InvalidRequestError(f"{what}, expected one of {', '.join(map(repr, kinds))}")
    return read_fields(model, given, strict=strict)


def read_event(text: str) -> Event:
    """A server's message; raises ``InvalidRequestError`` for anything else."""
    try:
        return _EVENTS.validate_json(text)
    except ValidationError as error:
        raise invalid(error) from error


def invalid(error: ValidationError) -> InvalidRequestError:
    """Return pydantic's complaint as one of our errors: each key with what was found and what was expected."""
    return InvalidRequestError(explain_validation(error.errors(include_url=False), skip=1))  # 1: the kind of message
