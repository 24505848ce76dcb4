"""Codecs that are right for one state in short calls, and wrong in some company, at some age or after some time."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import CodecState, LoadContext
from megatalker_backends.reference.codec import ReferenceCodec, ReferenceCodecState
from megatalker_backends.streaming.codec import StreamingState
from mistakes.catalogue import Quick, enter_all, mistake
from mistakes.codecs import Windowed

SCHEDULES = "test_any_schedule_equals_one_full_forward"
COMPANY = "test_as_many_states_as_it_takes_share_a_call"
COPIES = "test_copies_of_any_age_go_their_own_way"
LONG_CALLS = "test_long_calls_of_several_states_stay_exact"
LONG = "test_long_streams_stay_exact"
COLD = "test_a_codec_is_exact_before_and_after_its_warmup"
INSTANCES = "test_instances_of_two_checkpoints_keep_apart_and_stay_within_one"


@dataclass(eq=False)
class Aged(StreamingState):
    """Knows how many frames it has got."""

    age: int = 0


class Ageing(Quick):
    """Healthy, with states that know their age; its broken children look at the calls."""

    def open(self) -> Aged:
        return Aged(super().open().memory)

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = self.spoilt(list(states), list(codes), super().decode(states, codes))
        for state, fresh in zip(states, codes, strict=True):
            assert isinstance(state, Aged)
            state.age += len(fresh)
        return chunks

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        """Return the samples to hand out in place of the right ones; ages are those before the call."""
        return chunks


def quieter(chunk: Tensor) -> Tensor:
    return chunk * 0.99


class AgesApart(Ageing):
    limit = 0

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        youngest = min(state.age for state in states)
        return [
            quieter(chunk) if state.age - youngest > self.limit else chunk
            for state, chunk in zip(states, chunks, strict=True)
        ]


class WrongLater(Ageing):
    first = 0

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        right = [1920 * max(0, self.first - state.age) for state in states]
        return [
            torch.cat((chunk[:samples], quieter(chunk[samples:]))) for chunk, samples in zip(chunks, right, strict=True)
        ]


@mistake(LONG)
class SingleFramesFrom512(WrongLater):
    """Its step for single frames looks angles up in a table of 512 positions."""

    first = 512

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        wrong = super().spoilt(states, codes, chunks)
        return [late if len(chunk) == 1920 else chunk for late, chunk in zip(wrong, chunks, strict=True)]


class Window(Quick):
    frames = 72

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        config = replace(checkpoint.codec_config, sliding_window=self.frames)
        checkpoint.codec_config, kept = config, checkpoint.codec_config
        super().__init__(checkpoint, context)
        checkpoint.codec_config = kept


# fmt: off
enter_all(
    Ageing, "spoilt",
    ("WrongFromTheFourth", "Its tiles hold three states, and later states of a call are wrong.", (SCHEDULES, COMPANY),
     lambda self, states, codes, chunks: chunks[:3] + [quieter(chunk) for chunk in chunks[3:]]),
    ("WrongFromTheThirtyThird", "Its tiles hold 32 states, and later states of a call are wrong.", COMPANY,
     lambda self, states, codes, chunks: chunks[:32] + [quieter(chunk) for chunk in chunks[32:]]),
    ("Delaying", "Hands out each chunk's samples half a frame late.", COMPANY,
     lambda self, states, codes, chunks: [torch.cat((torch.zeros(960), chunk[:-960])) for chunk in chunks]),
    ("LongCallsInCompany", "Its buffer for calls of several states holds 60 frames of each.", LONG_CALLS,
     lambda self, states, codes, chunks: [
         chunk if len(chunk) <= 60 * 1920 or len(chunks) == 1 else quieter(chunk) for chunk in chunks]),
)
# fmt: on
enter_all(
    AgesApart,
    "limit",
    ("AgesApartBy32", "Pads what states remember to the youngest's plus 32 frames.", LONG_CALLS, 32),
    ("AgesApartBy64", "Pads what states remember to the youngest's plus 64 frames.", LONG_CALLS, 64),
    ("AgesApartBy512", "Pads what states remember to the youngest's plus 512 frames.", LONG, 512),
)
enter_all(
    WrongLater,
    "first",
    ("From400", "Wrong from frame 400 of a stream on.", LONG, 400),
    ("From1000", "Wrong from frame 1000 of a stream on.", LONG, 1000),
)
enter_all(
    Window,
    "frames",
    ("Window71", "A frame sees 70 before it.", LONG, 71),
    ("Window73", "A frame sees 72 before it.", LONG, 73),
)
enter_all(
    Windowed, "kept", ("Past150", "Remembers 150 frames: all that a decoder of two layers hears.", LONG_CALLS, 150)
)


@mistake(SCHEDULES, COMPANY)
class Exchanged(Ageing):
    """Exchanges the results of the fourth and the fifth state of a call."""

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        if len(chunks) > 4 and len(chunks[3]) == len(chunks[4]):
            chunks[3], chunks[4] = chunks[4], chunks[3]
        return chunks


@mistake(SCHEDULES)
class UnequalCounts(Ageing):
    """Cuts the first state's last frame short where states of a call get different numbers of frames."""

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        if len(set(map(len, chunks))) > 1:
            chunks[0][-1:] = 0
        return chunks


@mistake(SCHEDULES, COPIES)
class SharedPast(Quick):
    """A copy shares its past with the original until one of them is decoded alone."""

    class SharedState(StreamingState):
        def copy(self) -> Self:
            return replace(self)

    def open(self) -> StreamingState:
        return self.SharedState(super().open().memory)

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        if len(states) == 1 and isinstance(states[0], StreamingState):
            states[0].memory = states[0].memory.clone()
        return super().decode(states, codes)


@mistake(COPIES)
class YoungCopies(Quick):
    """A copy of a state without a past, or with a short one, is a new state."""

    class YoungState(Aged):
        def copy(self) -> Self:
            twin = super().copy()
            if self.age < 3:
                torch.as_tensor(twin.memory).zero_()
            return twin

    def open(self) -> Aged:
        return self.YoungState(super().open().memory)

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        for state, fresh in zip(states, codes, strict=True):
            assert isinstance(state, Aged)
            state.age += len(fresh)
        return chunks


@mistake(SCHEDULES)
class ByAddress(Quick):
    """Finds memory by the address of a state, which a later state may get again."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._memories: dict[int, Any] = {}

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        for state in states:
            assert isinstance(state, StreamingState)
            state.memory = self._memories.setdefault(id(state), state.memory)
        return super().decode(states, codes)


@mistake(SCHEDULES)
class FirstThreadOnly(Quick):
    """Prepares what it needs for the thread that loaded it, and does without in others."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._own = threading.local()
        self._own.scale = 1.0

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        scale = getattr(self._own, "scale", 0.0)
        return [chunk * scale for chunk in super().decode(states, codes)]


@mistake(SCHEDULES)
class IgnoresStrides(Quick):
    """Reads codes as if rows lay one behind the other."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        return super().decode(states, [fresh.as_strided(fresh.shape, (fresh.shape[1], 1)) for fresh in codes])


@mistake(COPIES)
class BorrowsCodes(ReferenceCodec):
    """Remembers the caller's own tensors, which the caller may use for something else."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        for state, fresh in zip(states, codes, strict=True):
            assert isinstance(state, ReferenceCodecState)
            if len(state.codes) == len(fresh):
                state.codes = fresh
        return chunks


@mistake(SCHEDULES)
class OneBuffer(Quick):
    """Hands out views of a buffer that the next call fills again."""

    _buffer = torch.zeros(0)

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        needed = sum(map(len, chunks))
        if len(self._buffer) < needed:
            self._buffer = torch.zeros(needed)
        self._buffer[:needed] = torch.cat(chunks)
        return list(self._buffer[:needed].split([len(chunk) for chunk in chunks]))


@mistake(LONG)
class PositionsModulo1024(Quick):
    """Counts positions in ten bits."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        transformer: Any = self.decoder.transformer
        place = transformer._place

        def wrapped(position: Tensor, frames: int) -> Any:
            seen, turned = place(position, frames), place(position % 1024, frames)
            return replace(turned, mask=seen.mask)

        transformer._place = wrapped


@mistake(COLD)
class WrongBeforeWarmup(Quick):
    """Unpacks its weights while warming up."""

    _warm = False

    def warmup(self) -> None:
        self._warm = True

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, codes)
        return chunks if self._warm else [quieter(chunk) for chunk in chunks]


@mistake(COLD)
class WarmupForgets(Quick):
    """Warming up clears the memory of all states."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._memories: list[Tensor] = []

    def open(self) -> StreamingState:
        state = super().open()
        self._memories = [*self._memories, torch.as_tensor(state.memory)][-20:]
        return state

    def warmup(self) -> None:
        for memory in self._memories:
            memory.zero_()


@mistake(INSTANCES)
class SharedWeights(Quick):
    """All instances share the weights of the first."""

    _first: ClassVar[Any] = None

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        if SharedWeights._first is None:
            SharedWeights._first = self._runner
        self._runner = SharedWeights._first


@mistake(INSTANCES)
class Unclamped(Quick):
    """Does not keep samples within [-1, 1]."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        waveform: Any = self.decoder.waveform
        waveform.forward = lambda parts, memories: _unclamped(waveform, parts, memories)


def _unclamped(waveform: Any, parts: Sequence[Tensor], memories: Sequence[list[Tensor]]) -> list[Tensor]:
    signals = [rows.permute(2, 0, 1) for rows in waveform.first(parts, memories)]
    for block in waveform.blocks:
        signals = block(signals, memories)
    samples = map(waveform.last, map(waveform.snake, signals), memories)
    return [some.squeeze(0) for some in samples]
