"""One utterance while it is being made. Owned by the worker; the consumer's stream only reads its record."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.chunking import ChunkPolicy
from megatalker.engine.facts import BackendSwitch, FinishReason
from megatalker.engine.guard import RunawayGuard
from megatalker.engine.mailbox import Mailbox
from megatalker.engine.playback import PlaybackClock
from megatalker.engine.scheduler import hold_until
from megatalker.engine.script import Script
from megatalker.engine.segment import Codes, Segment
from megatalker.interfaces import CodecState
from megatalker.prompt import Layout
from megatalker.sampling import SamplingParams
from megatalker.voices import Voice


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for, checked."""

    voice: Voice
    language: str
    instruct: str | None
    layout: Layout
    sampling: SamplingParams
    max_frames: int
    max_ahead_s: float | None
    return_codes: bool


@dataclass(slots=True)
class Record:
    """What the worker writes down about a stream for its consumer to read."""

    seed: int
    requested_at: float
    backend: str
    codec: str
    frames: int = 0
    """Handed out as audio."""
    chunks: int = 0
    segments: int = 0
    last_decoded_at: float | None = None
    switches: tuple[BackendSwitch, ...] = ()
    playback: PlaybackClock = field(default_factory=PlaybackClock)


@dataclass(slots=True, eq=False)
class Session:
    """The state of one utterance: text, decoder stream, codec stream, frames that still wait to be heard."""

    request: Request
    script: Script
    record: Record
    mailbox: Mailbox
    chunking: ChunkPolicy
    guard: RunawayGuard | None
    admitted: bool = False
    """Counts against the streams that decode at the same time."""
    segment: Segment | None = None
    heard: list[Codes] = field(default_factory=list)
    """Frames the codec state has gone through, the reference frames of an in-context voice included."""
    pending: list[Codes] = field(default_factory=list)
    """Frames decoded, not yet handed out."""
    sounding: int = 0
    """How many of these, from the first on, the codec has been given: their audio is on its way."""
    codec_state: CodecState | None = None
    ending: FinishReason | None = None
    """Nothing more will be decoded: hand out what is pending, then end like this."""
    error: Exception | None = None

    @property
    def needs_prefill(self) -> bool:
        """A decoder stream must begin, or be continued, before the next frame."""
        if self.ending is not None:
            return False
        return self.script.can_begin if self.segment is None else self.segment.handle is None

    @property
    def starved(self) -> bool:
        """Its caller has more text to give, and everything given has been fed."""
        if self.ending is not None:
            return False
        return not self.script.can_begin if self.segment is None else self.segment.next_row is None

    @property
    def decodable(self) -> bool:
        """The next frame can be made, were it not for playback."""
        segment = self.segment
        return self.ending is None and segment is not None and segment.handle is not None and not self.starved

    @property
    def frames(self) -> int:
        """Frames decoded in all segments."""
        return self.record.frames + len(self.pending)

    @property
    def held_until(self) -> float:
        """When the next frame may be made without getting too far ahead of playback; 0: at once. Infinite: when the
        consumer has taken some of what there is.
        """
        limit, dry_at = self.request.max_ahead_s, self.record.playback.dry_at
        coming_s = self.sounding * FRAME_SECONDS
        if len(self.pending) > self.sounding:
            return 0.0
        if self.mailbox.is_full(coming_s):
            return math.inf
        if limit is None or dry_at is None:
            return 0.0
        return hold_until(dry_at + coming_s, limit, self.chunking.target)

    def due(self, now: float) -> bool:
        """Whether its pending frames should be handed out now. A stream that waits for text keeps none back."""
        if not self.pending:
            return False
        waits = self.ending is not None or self.starved or self.segment is None
        return waits or self.chunking.due(len(self.pending), self.record.playback.ahead(now))

    def pending_codes(self) -> Tensor:
        """``[frames, code groups]`` int64."""
        return torch.tensor(self.pending, dtype=torch.int64)

    def end(self, reason: FinishReason, error: Exception | None = None) -> None:
        """Decode nothing more; the first call decides."""
        if self.ending is None:
            self.ending, self.error = reason, error

    def drop_pending(self) -> None:
        """Nobody wants to hear the frames that were not handed out."""
        self.pending, self.sounding = [], 0

    def sound_again(self) -> None:
        """The audio on its way is lost: the codec is given its frames once more, in a state before them."""
        if self.sounding:
            self.sounding, self.codec_state = 0, None

    def forget(self) -> None:
        """Drop everything heavy; the record stays for the consumer."""
        self.segment, self.codec_state = None, None
        self.heard = []
        self.drop_pending()
