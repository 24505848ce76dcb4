"""Codecs with one deliberate mistake each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatalker.interfaces import CodecState
from megatalker_backends.reference.codec import ReferenceCodec, ReferenceCodecState
from megatalker_backends.streaming.codec import StreamingCodec
from mistakes.catalogue import Quick, mistake


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
