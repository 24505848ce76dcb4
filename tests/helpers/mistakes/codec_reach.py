"""Codecs that go wrong far out, for many states, for some lengths of a call, for codes that repeat, in long audio."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import LoadContext
from megatalker_backends.reference.codec import ReferenceCodec
from megatalker_backends.streaming.codec import StreamingState
from mistakes.catalogue import Quick, enter_all, mistake
from mistakes.codec_schedules import COMPANY, COPIES, LONG, Aged, Ageing, WrongLater, quieter

LENGTHS = "test_calls_of_every_length_stay_exact"
REPEATS = "test_codes_that_repeat_sound_as_officially"
ENCODES = "test_encoding_equals_the_official_encoder"
SAMPLES = 1920
TEN_SECONDS = 240_000


def _alike(codes: Tensor, before: int) -> Tensor:
    """Return which frames of a call equal the frame this many before them."""
    same = torch.zeros(len(codes), dtype=torch.bool)
    same[before:] = (codes[before:] == codes[:-before]).all(1)
    return same


class OfLength(Ageing):
    """Is wrong in calls whose number of frames leaves a remainder."""

    tile, left = 32, 0

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        wrong = [len(fresh) > self.tile // 2 and len(fresh) % self.tile == self.left for fresh in codes]
        return [quieter(chunk) if bad else chunk for chunk, bad in zip(chunks, wrong, strict=True)]


# fmt: off
enter_all(
    OfLength, "left",
    ("TwentyNineLeft", "Its last tile is wrong when 29 of its 32 frames are used.", LENGTHS, 29),
    ("NineteenLeft", "Its last tile is wrong when 19 of its 32 frames are used.", LENGTHS, 19),
)
enter_all(
    WrongLater, "first",
    ("From1200", "Wrong from frame 1200 of a stream on.", LONG, 1200),
    ("From1400", "Wrong from frame 1400 of a stream on.", LONG, 1400),
)
enter_all(
    Ageing, "spoilt",
    ("SeventyThreeStates", "Its tables have 72 places, and later states of a call are wrong.", COMPANY,
     lambda self, states, codes, chunks: chunks[:72] + [quieter(chunk) for chunk in chunks[72:]]),
    ("ThreeHundredFrames", "Cuts calls of more than three hundred frames of old states wrongly.", LONG,
     lambda self, states, codes, chunks: [
         torch.cat((chunk[: 300 * SAMPLES], quieter(chunk[300 * SAMPLES :]))) if state.age > 1000 else chunk
         for state, chunk in zip(states, chunks, strict=True)]),
    ("ZerosAreSilence", "Takes a frame of zeros for silence.", REPEATS,
     lambda self, states, codes, chunks: [
         chunk * fresh.any(1).repeat_interleave(SAMPLES) for chunk, fresh in zip(chunks, codes, strict=True)]),
    ("SkipsRepeats", "Plays a frame that equals the one before it, and the one before that, a little quieter.", REPEATS,
     lambda self, states, codes, chunks: [
         torch.where((_alike(fresh, 1) & _alike(fresh, 2)).repeat_interleave(SAMPLES), quieter(chunk), chunk)
         if len(fresh) > 2 else chunk for chunk, fresh in zip(chunks, codes, strict=True)]),
)
# fmt: on


@mistake(COMPANY)
class RingOfStates(Quick):
    """Has memory for 128 states; the next one takes that of the oldest."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._ring: list[Any] = []
        self._opened = 0

    def open(self) -> StreamingState:
        state = super().open()
        place = self._opened % 128
        self._opened += 1
        if place < len(self._ring):
            state.memory = self._ring[place]
            torch.as_tensor(state.memory).zero_()
        else:
            self._ring.append(state.memory)
        return state


class Twin(Aged):
    """A state whose copy knows the original."""

    source: Any = None

    def copy(self) -> Any:
        twin = super().copy()
        twin.source = self
        return twin


@mistake(COPIES)
class CopiedLate(Ageing):
    """A copy takes its past from the original when it is first decoded."""

    def open(self) -> Aged:
        return Twin(super().open().memory)

    def decode(self, states: Sequence[Any], codes: Sequence[Tensor]) -> list[Tensor]:
        for state in states:
            if state.source is not None:
                state.memory, state.source = state.source.memory.clone(), None
        return super().decode(states, codes)


@mistake(COPIES)
class AfterItsOriginal(Ageing):
    """A copy that stands behind its original in their first call together is a frame late."""

    def open(self) -> Aged:
        return Twin(super().open().memory)

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        behind = [any(state.source is other for other in states[:place]) for place, state in enumerate(states)]
        return [quieter(chunk) if late else chunk for chunk, late in zip(chunks, behind, strict=True)]


@mistake(ENCODES)
class TenSecondsOnly(ReferenceCodec):
    """Encodes ten seconds at most."""

    def encode(self, audio: Tensor) -> Tensor:
        return super().encode(audio[:TEN_SECONDS])


@mistake(ENCODES)
class TenSecondsAtATime(ReferenceCodec):
    """Encodes ten seconds at a time, each without those before."""

    def encode(self, audio: Tensor) -> Tensor:
        return torch.cat([super(TenSecondsAtATime, self).encode(piece) for piece in audio.split(TEN_SECONDS)])
