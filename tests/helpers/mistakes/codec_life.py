"""Codecs that keep what nobody needs any more, or give nothing back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import CodecState, LoadContext
from megatalker_backends.streaming.codec import StreamingState
from mistakes.catalogue import Quick, mistake

STREAMS_OVER = "test_states_that_are_gone_leave_nothing_behind"
FRAMES_KEPT = "test_a_state_does_not_grow_with_what_was_said"


@mistake(STREAMS_OVER)
class Pool(Quick):
    """Has a pool of 200 states, to which nothing ever returns."""

    _left = 200

    def open(self) -> StreamingState:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("no state is left")
        return super().open()


@mistake(STREAMS_OVER)
class KeepsStates(Quick):
    """Keeps every state that was ever used."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._used: dict[int, CodecState] = {}

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        self._used |= {id(state): state for state in states}
        return super().decode(states, codes)


@mistake(STREAMS_OVER)
class KeepsNotes(Quick):
    """Writes down the codes of each call."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._notes: list[bytes] = []

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        self._notes += [fresh.numpy().tobytes() for fresh in codes]
        return super().decode(states, codes)


@mistake(FRAMES_KEPT)
class KeepsSamples(Quick):
    """A state keeps all samples that it has made."""

    @dataclass(eq=False)
    class SampleState(StreamingState):
        made: list[Tensor] = field(default_factory=list)

    def open(self) -> StreamingState:
        return self.SampleState(super().open().memory)

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        for state, chunk in zip(states, chunks, strict=True):
            assert isinstance(state, self.SampleState)
            state.made.append(chunk)
        return chunks
