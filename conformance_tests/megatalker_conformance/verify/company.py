"""Streams that share a decoder: they join and leave at different times, and take turns at being left out."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from megatalker.interfaces import Frame
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_conformance.streams import GREEDY, Codes, StreamCase, SuiteStream, SuiteStreams, TeacherForced

ENDLESS = 2**31 - 1
LIVELY = SamplingParams(
    temperature=2.0, top_k=None, repetition_penalty=1.5, min_new_tokens=ENDLESS, predictor_temperature=2.0, seed=11
)
"""Sampling whose draws depend on history and noise, however sure the model is."""
UNENDING_GREEDY = replace(GREEDY, min_new_tokens=ENDLESS)
LEAST_FRAMES = 24
"""Frames that each stream says even where time is short."""
REST = 11
"""Each stream is left out of one call in this many."""


@dataclass(frozen=True)
class PlannedStream:
    """One stream of a plan."""

    case: StreamCase
    frames: int
    """It leaves after this many, unless it ends before."""
    joins: int = 0
    """Calls before it, or more where the decoder is full."""
    emitted: tuple[Codes, ...] = ()
    """Frames that another stream said before, with ``rows``: it goes on after them."""
    rows: torch.Tensor | None = None
    """``[frames, hidden_size]``: what the talker is fed for ``emitted``."""
    forced: tuple[Codes, ...] = ()
    """Codes that it is made to say; without them it chooses its own."""


def fitted(plan: Sequence[PlannedStream], decoder: CheckedTalker) -> list[PlannedStream]:
    """Return the streams that the decoder has positions for, cut to them."""
    left = [decoder.max_positions - len(each.case.embeds) - len(each.emitted) for each in plan]
    return [replace(each, frames=min(each.frames, room)) for each, room in zip(plan, left, strict=True) if room > 0]


@dataclass
class PlayedStream:
    """A planned stream, and all that it said."""

    plan: PlannedStream
    codes: list[Codes] = field(default_factory=list)
    """All frames, those of ``emitted`` included."""
    ended: bool = False
    logits: list[Frame] = field(default_factory=list)
    """Frames with their logits, where these were asked for."""

    @property
    def own_logits(self) -> TeacherForced:
        """The decoder's own logits, of the frames after ``emitted``."""
        return TeacherForced.from_frames(self.logits)


Held = tuple[PlayedStream, SuiteStream]


@dataclass
class PlanRunner:
    """Plays plans on one decoder.

    Args:
        streams: on the decoder.
        budget_s: after this many seconds streams leave as soon as they have said :data:`LEAST_FRAMES`.
        with_logits: keep the decoder's logits.
        room: streams that are held at the same time, at most.
    """

    streams: SuiteStreams
    budget_s: float
    with_logits: bool = False
    room: int = 8
    most_at_once: int = 0
    """Streams that were held at the same time."""

    def __post_init__(self) -> None:
        self.room = min(self.streams.decoder.max_streams or self.room, self.room)

    def play(self, plan: Sequence[PlannedStream]) -> list[PlayedStream]:
        """Play all streams to their ends."""
        played = [PlayedStream(each, list(each.emitted)) for each in plan]
        waiting = sorted(played, key=lambda each: each.plan.joins)
        held: list[Held] = []
        call, began = 0, time.monotonic()
        while waiting or held:
            due = [each for each in waiting if each.plan.joins <= call] or waiting[: not held]
            joining = due[: self.room - len(held)]
            waiting = waiting[len(joining) :]
            held += zip(joining, self._start(joining), strict=True)
            self.most_at_once = max(self.most_at_once, len(held))
            self._advance(_in_turn(held, call))
            late = time.monotonic() - began > self.budget_s
            for each, stream in held:
                if _is_over(each, stream, late):
                    self.streams.release(stream)
            held = [pair for pair in held if not _is_over(*pair, late)]
            call += 1
        return played

    def _start(self, joining: Sequence[PlayedStream]) -> list[SuiteStream]:
        """Begin all that begin anew in one call, and the others one by one."""
        anew = [each.plan.case for each in joining if each.plan.rows is None]
        begun = iter(self.streams.start_together(*anew) if anew else ())
        return [
            next(begun)
            if each.plan.rows is None
            else self.streams.resume(each.plan.case, each.plan.emitted, each.plan.rows)
            for each in joining
        ]

    def _advance(self, pairs: Sequence[Held]) -> None:
        steps = [stream.step(_next_forced(played)) for played, stream in pairs]
        frames = self.streams.decoder.decode(steps, return_logits=self.with_logits)()
        for (played, stream), frame in zip(pairs, frames, strict=True):
            played.ended = stream.ended = frame.ended
            if frame.codes is not None:
                played.codes.append(frame.codes)
                stream.codes.append(frame.codes)
            if self.with_logits:
                played.logits.append(frame)


def up_to(said: PlayedStream, frame: int) -> PlayedStream:
    """Return the same stream until after this frame, without logits."""
    return PlayedStream(said.plan, said.codes[: frame + 1], said.ended and len(said.codes) <= frame)


def _in_turn(held: Sequence[Held], call: int) -> list[Held]:
    """Return the streams of this call, in an order that is another each time."""
    chosen = [pair for place, pair in enumerate(held) if len(held) == 1 or (call + place) % REST]
    turned = chosen[call % len(chosen) :] + chosen[: call % len(chosen)]
    return turned[::-1] if call % 2 else turned


def _next_forced(played: PlayedStream) -> Codes | None:
    forced = played.plan.forced
    return forced[len(played.codes)] if forced else None


def _is_over(played: PlayedStream, stream: SuiteStream, late: bool) -> bool:
    said = len(stream.codes)
    return played.ended or said >= played.plan.frames or (late and said >= min(LEAST_FRAMES, played.plan.frames))
