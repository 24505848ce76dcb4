"""A test case, and the streams of a decoder that say it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from megatalker.errors import InvalidRequestError
from megatalker.interfaces import DecodeStep, Frame, StreamHandle, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_conformance.kept import content

Codes = tuple[int, ...]

GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False)
PLAIN_GREEDY = replace(GREEDY, repetition_penalty=1.0)
"""Greedy on the raw logits: what 16-bit runs are judged by, for a near-tie can be read off the logits."""


@dataclass(frozen=True)
class StreamCase:
    """A test case: all that one stream is given."""

    name: str
    """Name of the case in messages."""
    embeds: Tensor
    """``[T, hidden_size]`` prefill rows."""
    trailing: Tensor
    """``[N, hidden_size]`` text rows, one per frame; after them comes ``pad``."""
    pad: Tensor
    """``[hidden_size]``."""
    sampling: SamplingParams

    def text(self, frame: int) -> Tensor:
        """The row fed with this frame."""
        return self.trailing[frame] if frame < len(self.trailing) else self.pad

    @cached_property
    def content(self) -> str:
        """A digest of all that decides what is said."""
        return f"{content(self.embeds, self.trailing, self.pad)} {self.sampling}"

    def sampled(self, **changes: object) -> "StreamCase":
        """The same with other sampling values."""
        return replace(self, sampling=replace(self.sampling, **changes))  # type: ignore[arg-type]


@dataclass
class SuiteStream:
    """One case being said by one decoder."""

    case: StreamCase
    handle: StreamHandle
    first_frame: int = 0
    codes: list[Codes] = field(default_factory=list)
    ended: bool = False

    def step(self, forced: Sequence[int] | None = None) -> DecodeStep:
        """This stream's share of the next ``decode`` call."""
        return DecodeStep(self.handle, self.case.text(self.first_frame + len(self.codes)), forced)


class SuiteStreams:
    """Starts and advances streams on one decoder, and releases what a test leaves behind.

    Args:
        decoder: in its shell, which checks the frames for order and shape as they come.
    """

    def __init__(self, decoder: CheckedTalker) -> None:
        self.decoder = decoder
        self._open: list[StreamHandle] = []

    def start(self, case: StreamCase) -> SuiteStream:
        """Prefill."""
        return self.start_together(case)[0]

    def start_together(self, *cases: StreamCase) -> list[SuiteStream]:
        """One ``prefill`` call for all of them."""
        handles = self._prefill(*(StreamRequest(case.embeds, case.sampling) for case in cases))
        return [SuiteStream(*parts) for parts in zip(cases, handles, strict=True)]

    def resume(self, case: StreamCase, emitted: Sequence[Codes], rows: Tensor) -> SuiteStream:
        """Continue after ``emitted`` frames, whose talker input rows are ``rows [frames, hidden_size]``."""
        (handle,) = self._prefill(_continuation(case, emitted, rows))
        return SuiteStream(case, handle, len(emitted))

    def resume_beside(self, other: StreamCase, case: StreamCase, emitted: Sequence[Codes], rows: Tensor) -> SuiteStream:
        """Continue as :meth:`resume`, in one ``prefill`` call after another prompt."""
        beginning = StreamRequest(other.embeds, other.sampling)
        _, handle = self._prefill(beginning, _continuation(case, emitted, rows))
        return SuiteStream(case, handle, len(emitted))

    def _prefill(self, *requests: StreamRequest) -> list[StreamHandle]:
        handles = self.decoder.prefill(requests)
        self._open += handles
        return handles

    def advance(
        self, *streams: SuiteStream, forced: Sequence[int] | None = None, return_logits: bool = False
    ) -> list[Frame]:
        """One ``decode`` call for these streams, waited for at once."""
        return self.begin(*streams, forced=forced, return_logits=return_logits)()

    def begin(
        self, *streams: SuiteStream, forced: Sequence[int] | None = None, return_logits: bool = False
    ) -> Callable[[], list[Frame]]:
        """One ``decode`` call for these streams, to be waited for later; codes are forced on the first one."""
        first, *others = streams
        steps = [first.step(forced), *(stream.step() for stream in others)]
        take = self.decoder.decode(steps, return_logits=return_logits)
        return lambda: _note(streams, take())

    def run(self, stream: SuiteStream, frames: int) -> list[Codes]:
        """Advance alone until ``frames`` frames more are there, or the stream ends; all codes so far."""
        for _ in range(frames):
            if stream.ended:
                break
            self.advance(stream)
        return stream.codes

    def say(self, case: StreamCase, frames: int) -> list[Codes]:
        """Start, run and release."""
        stream = self.start(case)
        codes = self.run(stream, frames)
        self.release(stream)
        return codes

    def force(self, case: StreamCase, codes: Sequence[Codes]) -> "TeacherForced":
        """The logits before each of these frames, each computed from the given frames before it."""
        return TeacherForced.from_frames(self.follow(case, codes))

    def follow(self, case: StreamCase, forced: Sequence[Codes | None]) -> list[Frame]:
        """Start, take these steps, ``None`` being a free one, until it ends, and release; frames with logits."""
        stream = self.start(case)
        frames: list[Frame] = []
        for codes in forced:
            frames += self.advance(stream, forced=codes, return_logits=True)
            if stream.ended:
                break
        self.release(stream)
        return frames

    def release(self, stream: SuiteStream) -> None:
        self._open.remove(stream.handle)
        self.decoder.release(stream.handle)

    def release_all(self) -> None:
        """Free all open streams, also after a failed test."""
        while self._open:
            try:
                self.decoder.release(self._open.pop())
            except InvalidRequestError:  # the test released it itself
                continue


def _continuation(case: StreamCase, emitted: Sequence[Codes], rows: Tensor) -> StreamRequest:
    codes = torch.tensor(emitted)
    text = torch.stack([case.text(frame) for frame in range(len(codes))])
    return StreamRequest(torch.cat((case.embeds, rows)), case.sampling, tuple(codes[:, 0].tolist()), codes, text)


def _note(streams: Sequence[SuiteStream], frames: list[Frame]) -> list[Frame]:
    for stream, frame in zip(streams, frames, strict=True):
        stream.ended = frame.ended
        if frame.codes is not None:
            stream.codes.append(frame.codes)
    return frames


@dataclass(frozen=True)
class TeacherForced:
    """Raw logits of a run along given codes, on the CPU in float32."""

    talker: Tensor
    """``[frames, talker vocab]``."""
    predictor: Tensor
    """``[frames, code groups - 1, predictor vocab]``; zeros for a step that ended the stream."""

    @classmethod
    def from_frames(cls, frames: Sequence[Frame]) -> "TeacherForced":
        """The logits that these frames carry."""
        rows = [frame.logits for frame in frames if frame.logits is not None]
        assert len(rows) == len(frames), "return_logits gives logits for each frame"
        full = max((row.predictor for row in rows), key=len)
        predictor = [row.predictor if len(row.predictor) else torch.zeros_like(full) for row in rows]
        return cls(torch.stack([row.talker for row in rows]).cpu(), torch.stack(predictor).cpu())
