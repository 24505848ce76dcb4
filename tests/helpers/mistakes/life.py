"""Talker decoders that go wrong when a stream continues, or in some way of being called, loaded or used for long."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from megatalker_backends.compiled.runner import Share
from mistakes.bases import Requesting, Stepping
from mistakes.catalogue import Decoder, InvariantDecoder, enter_all, mistake
from mistakes.numerics import PROMPTS
from mistakes.schedules import ANY, Meddler

CONTINUES = "test_a_stream_continues_from_emitted_frames"
GROWS = "test_memory_does_not_grow_with_streams_and_frames"


class _Continuing(Decoder):
    """Changes streams that another backend began."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        with torch.inference_mode():
            for handle, request in zip(handles, requests, strict=True):
                if request.history:
                    self.begun(self._table[handle].row, handle, request)
        return handles

    def begun(self, row: int, handle: StreamHandle, request: StreamRequest) -> None:
        raise NotImplementedError

    def shift(self, handle: StreamHandle, by: int) -> None:
        self._table[handle].positions += by


# fmt: off
enter_all(
    _Continuing, "begun",
    ("HistoryForgotten", "A stream that continues has no code to penalise.", CONTINUES,
     lambda self, row, handle, request: self._model.sampler._seen[row].fill_(False)),
    ("HistoryOfOne", "A stream that continues remembers its last code only.", CONTINUES,
     lambda self, row, handle, request: self._model.sampler._seen[row].copy_(
         torch.arange(self._model.sampler._seen.shape[1]) == request.history[-1])),
    ("FrameRestarted", "A stream that continues counts its frames, and its noise, from 0.", (CONTINUES, PROMPTS),
     lambda self, row, handle, request: self._model.sampler._frame[row].fill_(0)),
    ("ContinuationShifted", "A stream that continues is a position late.", CONTINUES,
     lambda self, row, handle, request: self.shift(handle, 1)),
    ("ContinuationEarly", "A stream that continues is a position early.", PROMPTS,
     lambda self, row, handle, request: self.shift(handle, -1)),
    ("MinimumAnew", "A stream that continues waits for its minimum length once more.", CONTINUES,
     lambda self, row, handle, request: self._model.sampler._min_frames[row].add_(len(request.history))),
    ("MinimumForgotten", "A stream that continues has its minimum length behind it.", CONTINUES,
     lambda self, row, handle, request: self._model.sampler._min_frames[row].fill_(0)),
)
enter_all(
    Stepping, "text",
    ("FlatMemory", "Takes rows as if they lay next to each other.", ANY,
     lambda self, step: torch.as_strided(step.text, step.text.shape, (1,))),
)
enter_all(
    Requesting, "embeds",
    ("HalvedDoubles", "Takes rows in float64 by way of float16.", ANY,
     lambda self, rows: rows.half() if rows.dtype == torch.float64 else rows),
)
# fmt: on


@mistake(ANY)
class OneThread(Decoder):
    """Is set up for the thread that loaded it, and computes otherwise in any other."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._own = threading.local()
        self._own.factor = 1.0

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        factor = getattr(self._own, "factor", 0.9)
        return super().decode([replace(step, text=step.text * factor) for step in steps], return_logits=return_logits)


@mistake("test_two_instances_share_nothing")
class OneForAll(Meddler):
    """All instances share the table of positions."""

    _positions: ClassVar[dict[int, int]] = {}

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        self._positions[row] = len(embeds)
        return embeds

    def shares(self, shares: list[Share]) -> list[Share]:
        placed = [replace(share, position=self._positions[share.row]) for share in shares]
        for share in shares:
            self._positions[share.row] += 1
        return placed


@mistake("test_a_cold_instance_says_the_same")
class ColdWrong(Meddler):
    """Tables are filled by warm-up; before it the first positions are wrong."""

    _filled = False

    def warmup(self) -> None:
        self._filled = True

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        return embeds if self._filled else embeds * 1.02


@mistake("test_width_place_and_neighbours_change_no_bit")
class FalselyInvariant(InvariantDecoder):
    """Says that its bits do not depend on the width of a call, and rounds otherwise from three streams on."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        if len(steps) >= 3:
            steps = [replace(step, text=step.text.float() * (1 + 2**-23)) for step in steps]
        return super().decode(steps, return_logits=return_logits)


@mistake("test_a_continued_stream_has_the_same_bits")
class RoundsContinuedFrames(InvariantDecoder):
    """Adds the frames of a continuation up otherwise than those it decodes, by the last bit."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        rounded = (one if one.text is None else replace(one, text=one.text * (1 + 2**-23)) for one in requests)
        return super().prefill(list(rounded))


@mistake("test_a_continued_stream_has_the_same_bits")
class PrefillsContinuedFrames(InvariantDecoder):
    """Continues a stream of more than 64 frames from the rows of its prefill, which are added up otherwise."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        some = (replace(one, codes=None, text=None) if len(one.history) > 64 else one for one in requests)
        return super().prefill(list(some))


@mistake(GROWS)
class KeepsPrompts(Decoder):
    """Keeps the last row of each prompt for ever."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        self._past = [*getattr(self, "_past", ()), *(request.embeds[-1].clone() for request in requests)]
        return super().prefill(requests)


@mistake(GROWS)
class KeepsFrames(Decoder):
    """Writes down every frame, and never forgets one."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)

        def noted() -> list[Frame]:
            frames = take()
            self._log = getattr(self, "_log", [])
            self._log += [str(frame.codes) for frame in frames]
            return frames

        return noted
