"""Talker decoders that go wrong in some company only, or after some past."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamHandle
from megatalker_backends.compiled.runner import FrameRunner, Share
from mistakes.catalogue import Decoder, WideDecoder, enter_all, mistake

FULL_HOUSE = "test_streams_of_a_full_house_do_not_disturb_each_other"
ENDS = "test_streams_that_end_leave_the_others_of_their_call_alone"
CHURN = "test_streams_that_come_and_go_leave_nothing_behind"
ANY = "test_no_schedule_changes_what_a_stream_says"


class Meddling:
    """Changes the calls of the runner of a decoder that it is mixed into."""

    _runner: FrameRunner

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)  # type: ignore[call-arg]
        inner, meddling = self._runner, self

        class Between:
            def prefill(self, row: int, embeds: Tensor) -> None:
                inner.prefill(row, meddling.prompt(row, embeds))

            def begin(self, shares: Sequence[Share]) -> Callable[[], Any]:
                return inner.begin(meddling.shares(list(shares)))

        self._runner = Between()

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        """Return the prompt that is run instead."""
        return embeds

    def shares(self, shares: list[Share]) -> list[Share]:
        """Return the shares that are run instead."""
        return shares


def moved(share: Share, by: int = 1) -> Share:
    """Return the share at a later position."""
    return replace(share, position=share.position + by)


def with_text(share: Share, other: Share) -> Share:
    """Return the share with the text row of another one."""
    return replace(share, text=other.text)


class Meddler(Meddling, Decoder):
    """Changes the calls of its runner."""


class WideMeddler(Meddling, WideDecoder):
    """Changes the calls of its runner, of up to 64 streams."""


# fmt: off
enter_all(
    Meddler, "shares",
    ("FromSlotFiveOn", "Rows from the fifth on are read one position late.", FULL_HOUSE,
     lambda self, shares: [moved(share) if share.row >= 5 else share for share in shares]),
    ("FourLengths", "With exactly four different lengths in a call, the first stream takes the text of the last.",
     (FULL_HOUSE, ANY),
     lambda self, shares: [with_text(shares[0], shares[-1]), *shares[1:]]
     if len({share.position for share in shares}) == 4 else shares),
    ("EqualLengths", "Two streams of the same length take one text row.", ANY,
     lambda self, shares: [
         with_text(share, next(other for other in shares if other.position == share.position)) for share in shares]),
    ("SortedRows", "Reads text rows in the order of slots, whatever the order of the call.", (FULL_HOUSE, ANY),
     lambda self, shares: [
         with_text(share, other) for share, other in zip(shares, sorted(shares, key=lambda s: s.row), strict=True)]),
)
enter_all(
    WideMeddler, "shares",
    ("SeventeenStreams", "The seventeenth stream of a call takes the text of the first.", FULL_HOUSE,
     lambda self, shares: [
         with_text(share, shares[0]) if place == 16 else share for place, share in enumerate(shares)]),
    ("ThirtyThreeStreams", "With 33 streams in a call, and no other number, the last one is read one position late.",
     FULL_HOUSE, lambda self, shares: [*shares[:-1], moved(shares[-1])] if len(shares) == 33 else shares),
    ("SixtyFourStreams", "The last row of a full house of 64 is the scratch row, too.", FULL_HOUSE,
     lambda self, shares: [moved(share, -1) if share.row == 63 and len(shares) == 64 else share for share in shares]),
)
enter_all(
    Meddler, "prompt",
    ("AfterManyReleases", "After a hundred streams, places are handed out with something left in them.", CHURN,
     lambda self, row, embeds: embeds * 1.01 if self._table._issued > 100 else embeds),
)
# fmt: on


@mistake(FULL_HOUSE)
class SharedCache(Meddler):
    """Streams 7 and 8 share keys and values."""

    def shares(self, shares: list[Share]) -> list[Share]:
        for cache in self._model._talker_cache:
            cache.keys[7] = cache.keys[6]
            cache.values[7] = cache.values[6]
        return shares


@mistake(FULL_HOUSE, ANY)
class FarApart(Meddler):
    """When lengths differ by more than 64, the shortest stream is read one position late."""

    def shares(self, shares: list[Share]) -> list[Share]:
        order = sorted(range(len(shares)), key=lambda index: shares[index].position)
        if shares[order[-1]].position - shares[order[0]].position > 64:
            shares[order[0]] = moved(shares[order[0]])
        return shares


@mistake(FULL_HOUSE, ANY)
class LastTile(Meddler):
    """Streams go in tiles of four; the last of an odd width reads the text that lay in its place before."""

    _before: Sequence[Share] = ()

    def shares(self, shares: list[Share]) -> list[Share]:
        now = list(shares)
        if len(shares) > 4 and len(shares) % 4 == 1 and len(self._before) >= len(shares):
            shares[-1] = with_text(shares[-1], self._before[len(shares) - 1])
        self._before = now
        return shares


@mistake(FULL_HOUSE, ANY)
class ComesBack(Meddler):
    """A stream that was left out of a call is a position late when it comes back."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._steps: dict[int, int] = {}
        self._call = 0

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        self._steps.pop(row, None)
        return embeds

    def shares(self, shares: list[Share]) -> list[Share]:
        self._call += 1
        late = [self._steps.get(share.row, self._call - 1) < self._call - 1 for share in shares]
        self._steps |= {share.row: self._call for share in shares}
        return [moved(share) if paused else share for share, paused in zip(shares, late, strict=True)]


@mistake(FULL_HOUSE, ANY)
class PromptTouchesLast(Meddler):
    """A prompt writes over what is pending for the last stream that was decoded."""

    _last: int | None = None

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        if self._last not in (None, row):
            self._model.pending.hidden[self._last] *= 0.5
        return embeds

    def shares(self, shares: list[Share]) -> list[Share]:
        self._last = shares[-1].row
        return shares


@mistake(CHURN, ANY)
class ReleaseTouchesNext(Decoder):
    """Releasing a stream clears what is pending for the stream in the next row."""

    def release(self, stream: StreamHandle) -> None:
        row = self._table[stream].row
        super().release(stream)
        with torch.inference_mode():
            self._model.pending.logits[row + 1] *= 0.5


class _Ending(Decoder):
    """One stream after another, so that endings can act on those after them."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        frames: list[Frame] = []
        for step in steps:
            given = self.before(step, steps[: len(frames)], frames)
            frames += super().decode([given], return_logits=return_logits)()
        ended = next((place for place, frame in enumerate(frames) if frame.ended), None)
        if ended is not None:
            self.after(steps, ended)
        return frames

    def before(self, step: DecodeStep, earlier: Sequence[DecodeStep], frames: Sequence[Frame]) -> DecodeStep:
        return step

    def after(self, steps: Sequence[DecodeStep], ended: int) -> None:
        pass

    def hold_back(self, steps: Iterable[DecodeStep]) -> None:
        for step in steps:
            entry = self._table[step.stream]
            if entry.frames:
                entry.positions -= 1


@mistake(ENDS, ANY)
class EndPassesText(_Ending):
    """Streams after one that ends take its text row."""

    def before(self, step: DecodeStep, earlier: Sequence[DecodeStep], frames: Sequence[Frame]) -> DecodeStep:
        over = [other for other, frame in zip(earlier, frames, strict=True) if frame.ended]
        return replace(step, text=over[-1].text) if over else step


# fmt: off
enter_all(
    _Ending, "after",
    ("EndHoldsBackLater", "Streams after one that ends are not advanced.", ENDS,
     lambda self, steps, ended: self.hold_back(steps[ended + 1 :])),
    ("EndHoldsBackAll", "When one stream of a call ends, the others stand still.", ENDS,
     lambda self, steps, ended: self.hold_back([*steps[:ended], *steps[ended + 1 :]])),
)
# fmt: on


@mistake(ENDS)
class EndsAtOnce(_Ending):
    """When two streams of a call end, those after them are a position early."""

    def before(self, step: DecodeStep, earlier: Sequence[DecodeStep], frames: Sequence[Frame]) -> DecodeStep:
        if sum(frame.ended for frame in frames) == 2:
            self.hold_back([step])
        return step


@mistake(FULL_HOUSE, ANY)
class NeighboursLogits(Decoder):
    """Hands out the logits of the next stream of the call; the codes are right."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)

        def turned() -> list[Frame]:
            frames = take()
            going = [place for place, frame in enumerate(frames) if not frame.ended]
            logits = [frames[place].logits for place in (*going[1:], *going[:1])]
            for place, others in zip(going, logits, strict=True):
                frames[place] = replace(frames[place], logits=others)
            return frames

        return turned
