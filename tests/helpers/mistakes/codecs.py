"""Codecs with one deliberate mistake each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import CodecState, LoadContext
from megatalker_backends.reference.codec import ReferenceCodec, ReferenceCodecState
from megatalker_backends.streaming.codec import StreamingCodec
from mistakes.catalogue import HalfCodec, Quick, RoundedProducts, mistake


@mistake("test_copies_of_any_age_go_their_own_way")
class Windowed(ReferenceCodec):
    """Remembers 25 frames, as the official chunking does."""

    kept = 25

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        for state in states:
            assert isinstance(state, ReferenceCodecState)
            state.codes = state.codes[len(state.codes) - self.kept :] if len(state.codes) > self.kept else state.codes
        return chunks


@mistake("test_as_many_states_as_it_takes_share_a_call")
class Memoryless(Quick):
    """Decodes each chunk on its own."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        return super().decode([self.open() for _ in states], codes)


class EntangledState(ReferenceCodecState):
    def copy(self) -> "EntangledState":
        return self


@mistake("test_copies_of_any_age_go_their_own_way")
class Entangled(ReferenceCodec):
    """A copy of a state is the state itself."""

    def open(self) -> EntangledState:
        fresh = super().open()
        return EntangledState(fresh.codes)


@mistake(
    "test_chunking_changes_no_bit",
    "test_neighbours_change_no_bit",
    "test_a_copied_state_goes_on_with_the_same_bits",
)
class Regrouping(StreamingCodec):
    """Says that chunking changes no bit, and adds up in another order in calls of several frames or streams."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        several = len(codes) > 1 or len(codes[0]) > 1
        return [torch.nextafter(chunk, torch.zeros(())) for chunk in chunks] if several else chunks


NOISE = "test_errors_of_rounded_products_are_noise_and_less_than_the_official_ones"
ROUNDED = ("test_any_schedule_equals_one_full_forward", NOISE)


@mistake(*ROUNDED)
class BfloatCodec(HalfCodec):
    """Says that it multiplies float16 numbers, and multiplies bfloat16 ones."""

    rounded = torch.bfloat16


class ScaledCodec(HalfCodec):
    """One layer of the decoder is a hundredth too large."""

    layer = ""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self.decoder.get_buffer(self.layer).mul_(1.01)


@mistake(*ROUNDED)
class ScaledIntoCodec(ScaledCodec):
    """Multiplies rounded numbers, and what goes into the transformer is a hundredth too large."""

    layer = "transformer.into"


@mistake(NOISE)
class ScaledLastCodec(ScaledCodec):
    """Multiplies rounded numbers, and the last convolution is a hundredth too large."""

    layer = "waveform.last.weight"


@mistake("test_any_schedule_equals_one_full_forward", "test_long_streams_stay_exact")
class UnheldCodec(Quick):
    """Multiplies float16 numbers, and does not say so."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        with RoundedProducts(torch.float16):
            return super().decode(states, codes)
