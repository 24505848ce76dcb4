"""Talker decoders that go wrong after hundreds of frames or streams, beyond 64 streams, or in methods seldom called."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from megatalker_backends.compiled.runner import Share
from mistakes.bases import Requesting, Stepping
from mistakes.catalogue import Decoder, VeryWideDecoder, enter_all, mistake
from mistakes.company import ALIKE, RULE
from mistakes.numerics import LONG, EachFrame
from mistakes.schedules import ANY, ENDS, Meddler, Meddling, moved, with_text

LATE_ENDS = "test_streams_end_where_they_should_after_hundreds_of_frames"
LIVES = "test_streams_that_wait_are_told_from_a_thousand_that_come_and_go"
WIDE = "test_more_streams_than_64_are_told_apart"
UPKEEP = "test_warmup_and_prepare_change_nothing_for_streams_that_are_held"


class VeryWideMeddler(Meddling, VeryWideDecoder):
    """Changes the calls of its runner, of up to 130 streams."""


def _at(frame: int, change: Callable[[Any, int], object]) -> Callable[[Any, Any], None]:
    """Return a method that changes the sampler's row of a stream before this frame."""

    def touch(self: Any, entry: Any) -> None:
        if entry.frames == frame:
            change(self._model.sampler, entry.row)

    return touch


# fmt: off
enter_all(
    EachFrame, "touch",
    ("NeverEnds", "A stream that has not ended by frame 256 never does.", LATE_ENDS,
     _at(256, lambda sampler, row: sampler._min_frames[row].fill_(2**30))),
    ("ForgetsItsMinimum", "Forgets the minimum length at frame 100.", LATE_ENDS,
     _at(100, lambda sampler, row: sampler._min_frames[row].fill_(0))),
    ("NoiseSlips", "Repeats the noise of a frame at frame 120, and is one frame late from there on.", LATE_ENDS,
     _at(120, lambda sampler, row: sampler._frame[row].sub_(1))),
    ("HistoryCleared", "Forgets what was said, once, at frame 200.", (LATE_ENDS, LONG),
     _at(200, lambda sampler, row: sampler._seen[row].fill_(False))),
)
enter_all(
    VeryWideMeddler, "shares",
    ("SixtyFifthRow", "Rows from the sixty-fifth on are read one position late.", WIDE,
     lambda self, shares: [moved(share) if share.row >= 64 else share for share in shares]),
    ("AHundredTexts", "A call holds a hundred text rows; later streams take those of the first ones.", WIDE,
     lambda self, shares: [
         with_text(share, shares[place - 100]) if place >= 100 else share for place, share in enumerate(shares)]),
)
enter_all(
    Requesting, "embeds",
    ("BfloatAsHalf", "Takes the bits of bfloat16 prompts for those of float16 ones.", ANY,
     lambda self, rows: rows.contiguous().view(torch.float16).float().nan_to_num(0, 9, -9)
     if rows.dtype == torch.bfloat16 else rows),
)
enter_all(
    Stepping, "text",
    ("HalfTextTwice", "Adds text rows that come in 16 bits twice.", ANY,
     lambda self, step: step.text * 2 if step.text.itemsize == 2 else step.text),
)
enter_all(
    Requesting, "sampling",
    ("SixtyFourAtMost", "Takes a predictor's top-k between 65 and 1024 for 64.", RULE,
     lambda self, request: {"predictor_top_k": 64} if 64 < (request.sampling.predictor_top_k or 0) <= 1024 else {}),
)
# fmt: on


@mistake(LONG)
class Band(EachFrame):
    """Its first logits are off between positions 420 and 450."""

    def touch(self, entry: Any) -> None:
        if 420 <= entry.positions < 450:
            with torch.inference_mode():
                self._model.pending.logits[entry.row] *= 1.001


@mistake(LATE_ENDS)
class WornRows(Decoder):
    """The row of a stream of more than a hundred frames is never used again."""

    def release(self, stream: StreamHandle) -> None:
        row, worn = self._table[stream].row, self._table[stream].frames > 100
        super().release(stream)
        if worn:
            self._table._free.remove(row)


class _ByBits(Decoder):
    """Finds the length of a stream by some bits of its handle."""

    count = 0

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._lengths = [0] * self.count

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        for handle in handles:
            self._lengths[handle % self.count] = self._table[handle].positions
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        for step in steps:
            self._table[step.stream].positions = self._lengths[step.stream % self.count]
        take = super().decode(steps, return_logits=return_logits)

        def finish() -> list[Frame]:
            frames = take()
            for frame in frames:
                self._lengths[frame.stream % self.count] += not frame.ended
            return frames

        return finish


enter_all(
    _ByBits,
    "count",
    ("EightBits", "Finds the length of a stream by the low eight bits of its handle.", LIVES, 256),
    ("TenBits", "Finds the length of a stream by the low ten bits of its handle.", LIVES, 1024),
)


@mistake(LIVES)
class LeftOut(Meddler):
    """A stream that was left out of two hundred calls is a position late when it comes back."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._last: dict[int, int] = {}
        self._call = 0

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        self._last[row] = self._call
        return embeds

    def shares(self, shares: list[Share]) -> list[Share]:
        self._call += 1
        late = [self._call - self._last[share.row] > 200 for share in shares]
        self._last |= {share.row: self._call for share in shares}
        return [moved(share) if paused else share for share, paused in zip(shares, late, strict=True)]


@mistake(LIVES)
class RefusalKeepsARow(Decoder):
    """A prompt that fails keeps its row."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        try:
            return super().prefill(requests)
        except Exception:
            self._table._free.pop()
            raise


@mistake(LIVES)
class RefusalMovesOthers(Decoder):
    """A prompt that fails leaves its place to the stream after it, as if it had been held."""

    _lost = 0

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        try:
            handles = super().prefill(requests)
        except Exception:
            self._lost = 1
            raise
        for handle in handles:
            self._table[handle].positions += self._lost
        self._lost = 0
        return handles


@mistake(ENDS)
class LastTwoEnd(Decoder):
    """When two streams of a call end, and no other number, the first of the others takes their text row."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)

        def finish() -> list[Frame]:
            frames = take()
            going = [frame.stream for frame in frames if not frame.ended]
            if going and len(frames) - len(going) == 2:
                self._table[going[0]].positions += 1
            return frames

        return finish


@mistake(ALIKE)
class OneTextForTwins(Decoder):
    """Requests that are equal share the text rows of the first, for as long as both go on."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._kind: dict[StreamHandle, object] = {}

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        kinds = [(each.embeds.double().sum().item(), each.sampling, each.history) for each in requests]
        self._kind |= dict(zip(handles, kinds, strict=True))
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        rows: dict[object, Tensor] = {}
        keys = [(self._kind[step.stream], self._table[step.stream].frames) for step in steps]
        shared = [rows.setdefault(key, step.text) for key, step in zip(keys, steps, strict=True)]
        steps = [replace(step, text=text) for step, text in zip(steps, shared, strict=True)]
        return super().decode(steps, return_logits=return_logits)


@mistake(ANY)
class TakenElsewhere(Decoder):
    """Frames that are taken in another thread than the call was made in leave the streams where they were."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        thread = threading.get_ident()
        take = super().decode(steps, return_logits=return_logits)

        def finish() -> list[Frame]:
            frames = take()
            if threading.get_ident() != thread:
                for frame in frames:
                    self._table[frame.stream].positions -= not frame.ended
            return frames

        return finish


class _Prepared(Decoder):
    """Has something to prepare after an early warm-up, in several calls."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._left = 3 * context.early

    def prepare(self) -> str | None:
        if not self._left:
            return None
        self._left -= 1
        with torch.inference_mode():
            self.spoil()
        return "something"

    def spoil(self) -> None:
        raise NotImplementedError


# fmt: off
enter_all(
    _Prepared, "spoil",
    ("PreparedAnew", "What it prepares has no memory of what streams have said.", UPKEEP,
     lambda self: self._model.sampler._seen.fill_(False)),
    ("PreparedPending", "What it prepares begins with other pending values.", UPKEEP,
     lambda self: self._model.pending.hidden.mul_(1.01)),
)
# fmt: on


@mistake(UPKEEP)
class WarmedOver(Decoder):
    """Warms up in a row that a stream may hold."""

    def warmup(self) -> None:
        with torch.inference_mode():
            self._model.pending.hidden[0] = 0
