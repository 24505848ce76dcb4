"""How long an answer takes, from the end of the user's words to the first sound, and where the time goes."""

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    CancelFrame,
    EndFrame,
    Frame,
    InputTransportMessageFrame,
    InterruptionFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.base_output import BaseOutputTransport

MS = 1e-6
"""Milliseconds of a nanosecond, the unit of Pipecat's clock."""


class Moment(StrEnum):
    """Moments on the way to the first sound. Not every turn has all, nor do they always come in this order."""

    TURN_DETECTED = "turn detected"
    """The silence was taken for the end of the user's turn, not for a pause."""
    TRANSCRIPT = "transcript"
    """The last final transcript before the answer."""
    FIRST_TOKEN = "first token"
    """The language model's first piece of text."""
    TEXT_TO_SPEECH = "text to speech"
    """The text-to-speech service got the first text to speak: a sentence, in ``TOKEN`` mode a word."""
    AUDIO_SENT = "audio sent"
    """The text-to-speech service sent the first audio on."""
    AUDIO_PLAYED = "audio played"
    """The transport began to play it; the network and the caller's own buffer come on top."""


Beginning = Literal["speech", "text", "agent"]
"""Start of a turn's clock: the user's last sound (as voice activity detection heard it), the arrival of typed text,
or the moment the agent was told to speak first."""
Outcome = Literal["answered", "cut", "unanswered"]
"""The first sound was played; the user interrupted before any sound; or nothing was said, and nobody interrupted."""
SINCE: dict[Beginning, str] = {"speech": "the end of speech", "text": "typed text", "agent": "the agent's cue"}


@dataclass(frozen=True, slots=True)
class Turn:
    """Times of one turn, up to the first sound of the answer."""

    number: int
    """Number of the turn in its conversation, from 1 on."""
    begun_by: Beginning
    outcome: Outcome
    ms: dict[Moment, float]
    """Milliseconds from the beginning to each moment that came, in order of time."""

    @property
    def total_ms(self) -> float | None:
        """Milliseconds until the first sound; ``None`` when there was none."""
        return self.ms.get(Moment.AUDIO_PLAYED)

    @property
    def stages_ms(self) -> dict[Moment, float]:
        """Milliseconds that each moment came after the one before: together they are the total."""
        times = [0.0, *self.ms.values()]
        return {moment: later - earlier for moment, (earlier, later) in zip(self.ms, pairwise(times), strict=True)}

    def as_json(self) -> dict[str, Any]:
        """Return the turn as JSON for a log or a page."""
        return {
            "turn": self.number,
            "begun_by": self.begun_by,
            "outcome": self.outcome,
            "total_ms": _rounded(self.total_ms),
            "ms": {moment.value: _rounded(at) for moment, at in self.ms.items()},
            "stages_ms": {moment.value: _rounded(took) for moment, took in self.stages_ms.items()},
        }

    def __str__(self) -> str:
        stages = ", ".join(f"{moment.value} {took:+.0f}" for moment, took in self.stages_ms.items()) or "nothing came"
        since = SINCE[self.begun_by]
        if self.total_ms is not None:
            return f"turn {self.number}: first sound {self.total_ms:.0f} ms after {since} ({stages})"
        what = "cut before any sound" if self.outcome == "cut" else "no sound"
        return f"turn {self.number}: {what}; after {since}: {stages}"


@dataclass(slots=True)
class _Current:
    begun_by: Beginning
    begun_at: int
    moments: dict[Moment, int] = field(default_factory=dict)
    next_to_play: bool = False
    """Everything said before has been played."""

    @property
    def is_noise(self) -> bool:
        """Voice activity in which no turn was detected, and nothing was said, so far."""
        return self.begun_by == "speech" and not self.moments


class TurnLatencyObserver(BaseObserver):
    """Measures every turn of a pipeline; pass it to ``PipelineWorker(observers=[...])``.

    Turns that begin with speech have the same total as Pipecat's ``UserBotLatencyObserver``, which leaves out typed
    turns and those that were cut before any sound.

    Events:
        on_turn(observer, turn): a :class:`Turn` has had its first sound, or will not have any.
    """

    def __init__(self) -> None:
        super().__init__()
        self._turns = 0
        self._current: _Current | None = None
        self._transcript_at: int | None = None
        """Time of the last transcript since the turn before; it may come before the end of speech is detected."""
        self._typed_at: int | None = None
        self._register_event_handler("on_turn", sync=True)

    async def on_push_frame(self, data: FramePushed) -> None:
        """See what passes."""
        if data.direction is not FrameDirection.DOWNSTREAM:
            return
        if isinstance(data.source, BaseOutputTransport):
            await self._note_playing(data.frame, data.timestamp)
        elif data.first_push:
            self._begin_or_resume(data.frame, data.timestamp)
            await self._note(data.frame, data.timestamp)

    def _begin_or_resume(self, frame: Frame, at: int) -> None:
        current = self._current
        nothing = current is None or current.is_noise
        match frame:
            case VADUserStartedSpeakingFrame() if current is None:
                self._transcript_at = None
            case VADUserStartedSpeakingFrame() if not self._came(Moment.TURN_DETECTED):
                self._current = None  # the silence was a pause
            case VADUserStoppedSpeakingFrame() if current is None:
                self._begin("speech", at - int(frame.stop_secs * 1e9))
            case UserStoppedSpeakingFrame() if current is None:
                self._begin("speech", at)  # detected by a service; nobody measures silence
            case InputTransportMessageFrame(message={"type": "send-text"}):
                self._typed_at = at  # it becomes a message when what is under way has ended
            case LLMMessagesAppendFrame(run_llm=True) if nothing:
                self._begin("text", self._typed_at or at)
            case LLMRunFrame() | TTSSpeakFrame() if nothing:
                self._begin("agent", at)
            case _:
                pass

    async def _note(self, frame: Frame, at: int) -> None:
        match frame:
            case UserStoppedSpeakingFrame():
                self._mark(Moment.TURN_DETECTED, at)
            case TranscriptionFrame():
                self._transcript_at = at
                if self._current is not None and Moment.FIRST_TOKEN not in self._current.moments:
                    self._current.moments[Moment.TRANSCRIPT] = at
            case LLMTextFrame():
                self._mark(Moment.FIRST_TOKEN, at)
            case TTSStartedFrame():
                self._mark(Moment.TEXT_TO_SPEECH, at)
            case TTSAudioRawFrame() if self._came(Moment.TEXT_TO_SPEECH):
                self._mark(Moment.AUDIO_SENT, at)
            case InterruptionFrame():
                await self._end("cut")
            case _:
                pass

    async def _note_playing(self, frame: Frame, at: int) -> None:
        """Observe a frame of the output transport, which plays frames in order and passes each on when it is played."""
        match frame:
            case TTSStartedFrame() if self._current is not None:
                self._current.next_to_play = True
            case BotStartedSpeakingFrame() | TTSAudioRawFrame() if self._plays_this_turn(frame):
                self._mark(Moment.AUDIO_PLAYED, at)
                await self._end("answered")
            case EndFrame() | CancelFrame():
                await self._end("unanswered")
            case _:
                pass

    def _plays_this_turn(self, frame: Frame) -> bool:
        """Whether ``frame`` plays this turn; a bot that continues earlier speech does not start to speak again."""
        current = self._current
        starts = isinstance(frame, BotStartedSpeakingFrame)
        return current is not None and self._came(Moment.AUDIO_SENT) and (starts or current.next_to_play)

    def _came(self, moment: Moment) -> bool:
        return self._current is not None and moment in self._current.moments

    def _begin(self, begun_by: Beginning, at: int) -> None:
        self._current, self._typed_at = _Current(begun_by, at), None
        if begun_by == "speech" and self._transcript_at is not None:
            self._current.moments[Moment.TRANSCRIPT] = self._transcript_at

    def _mark(self, moment: Moment, at: int) -> None:
        if self._current is not None:
            self._current.moments.setdefault(moment, at)

    async def _end(self, outcome: Outcome) -> None:
        current, self._current, self._transcript_at = self._current, None, None
        if current is None or current.is_noise:
            return
        if outcome == "cut" and current.begun_by == "speech" and Moment.TRANSCRIPT not in current.moments:
            outcome = "unanswered"  # there was nothing to answer
        self._turns += 1
        times = sorted(current.moments.items(), key=lambda item: item[1])
        ms = {moment: max(0, at - current.begun_at) * MS for moment, at in times}
        await self._call_event_handler("on_turn", Turn(self._turns, current.begun_by, outcome, ms))


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 1)
