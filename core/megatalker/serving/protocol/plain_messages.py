"""Messages of ``/api/v1/speak`` and fields of ``/tts/stream``: few words, one voice, one utterance after another.

A session: ``start`` is answered by ``ready``; each ``speak`` by binary messages, 40 ms of samples each (mono, 24 kHz
and 16-bit unless ``start`` says otherwise), and ``complete``. Utterances are spoken in the order in which they were
asked for, so that audio belongs to the earliest that is not complete. ``cancel`` completes all that was asked for;
after ``stop`` the server says the rest and closes. What goes wrong is an ``error`` with a code; it ends one utterance,
or nothing at all.
"""

from typing import Annotated, Literal

from pydantic import Field

from megatalker.engine.speech.outputs import FinishReason
from megatalker.serving.protocol.leniency import Integer
from megatalker.serving.protocol.messages import (
    MOST_CAST,
    MarkPlace,
    Message,
    RequestLexicon,
    SampleRate,
    SpeechFields,
    UtteranceId,
    read_message,
)
from megatalker.settings import Markup, Normalize

PIECE_S = 0.04
"""Seconds of samples that are sent at a time."""
PlainFormat = Literal["s16le", "pcm_mulaw", "pcm_alaw"]
ErrorCode = Literal[
    "MODEL_LOADING",  # try again when GET /health answers 200
    "UNKNOWN_VOICE",
    "INVALID_TEXT",
    "INVALID_MESSAGE",
    "TOO_MANY_STREAMS",  # try again later
    "BACKEND_FAULT",
    "CLOSING",  # the server is about to stop, or has no backend left
    "INTERNAL_ERROR",
]


class PlainFields(Message):
    """How to speak, in the words of the official package."""

    language: str | None = None
    speaker: str | None = None
    """A speaker of the checkpoint, or a voice the server keeps (``GET /v1/voices``)."""
    max_new_tokens: Annotated[Integer, Field(ge=2)] | None = None
    """Tokens of the whole utterance, at most: one for each frame of 80 ms, and one for the end, as officially."""
    seed: Annotated[Integer, Field(ge=0, lt=2**64)] | None = None
    clean_text: bool = True
    """``false``: the text goes to the model as it is."""
    format: PlainFormat = "s16le"
    sample_rate: SampleRate | None = None
    """Null: 8000 for ``pcm_mulaw`` and ``pcm_alaw``, else 24000."""
    normalize: Normalize | None = None
    """``on``: numbers, dates, amounts, units, addresses and abbreviations are written out in words. By default the
    server's setting."""
    lexicon: RequestLexicon | None = None
    """Respellings by word, and tables of them by language; they go before those of the voice and of the server."""
    markup: Markup | None = None
    """``tags`` or ``ssml``: the text holds pauses, marks, voices and spoken forms. By default the server's setting."""
    cast: Annotated[dict[str, str], Field(max_length=MOST_CAST)] | None = None
    """Speakers as in ``speaker``, by the names that a text in markup gives them."""

    def speech_fields(self) -> SpeechFields:
        """Return the same fields in our words."""
        frames = None if self.max_new_tokens is None else self.max_new_tokens - 1
        return SpeechFields(
            language=self.language,
            voice=self.speaker,
            max_frames=frames,
            seed=self.seed,
            clean_text=self.clean_text,
            normalize=self.normalize,
            lexicon=self.lexicon,
            markup=self.markup,
            cast=self.cast,
        )


class StartSession(PlainFields):
    """How to speak from now on; begins a session, or changes it."""

    type: Literal["start"] = "start"


class Speak(Message):
    """Say this."""

    type: Literal["speak"] = "speak"
    text: str
    id: UtteranceId = ""
    """Repeated in the answers to this request."""


class CancelAll(Message):
    """Drop all utterances that are not complete."""

    type: Literal["cancel"] = "cancel"


class Stop(Message):
    """The client will send no more requests."""

    type: Literal["stop"] = "stop"


class Ready(Message):
    """The session has begun."""

    type: Literal["ready"] = "ready"
    sample_rate: int
    format: PlainFormat
    backend: str
    ignored: Annotated[tuple[str, ...], Field(exclude_if=lambda names: not names)] = ()
    """Fields of ``start`` that mean nothing here."""


class ReachedMarks(Message):
    """Marks of the text that the samples sent so far have reached."""

    type: Literal["marks"] = "marks"
    id: UtteranceId
    marks: tuple[MarkPlace, ...]


class Complete(Message):
    """Every sample of the utterance has been sent."""

    type: Literal["complete"] = "complete"
    id: UtteranceId
    finish_reason: FinishReason
    audio_s: float
    unsaid_chars: int = 0
    """Characters of the text that were left out; estimated."""


class PlainError(Message):
    """Something went wrong, with the utterance of this id where there is one."""

    type: Literal["error"] = "error"
    id: UtteranceId | None
    code: ErrorCode
    message: str
    retry_after_s: float | None = None
    """Seconds after which to try again; null where waiting does not help."""


PlainRequest = StartSession | Speak | CancelAll | Stop
PlainEvent = Ready | ReachedMarks | Complete | PlainError

_KINDS: dict[object, type[PlainRequest]] = {"start": StartSession, "speak": Speak, "cancel": CancelAll, "stop": Stop}


def read_plain_request(text: str, *, strict: bool = False) -> tuple[PlainRequest, tuple[str, ...]]:
    """Return a client's message, as :func:`~megatalker.serving.protocol.messages.read_request`."""
    return read_message(text, _KINDS, strict=strict)
