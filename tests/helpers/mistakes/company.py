"""Talker decoders and codecs that go wrong for certain requests, ages, widths and forms of what they are given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import CodecState, DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from megatalker.sampling import SamplerRows, SamplingParams
from megatalker_backends.compiled.runner import Share
from megatalker_backends.streaming.codec import StreamingState
from mistakes.bases import Requesting
from mistakes.catalogue import Decoder, Quick, enter_all, mistake
from mistakes.codec_schedules import COMPANY, COPIES, LONG_CALLS, SCHEDULES, Ageing, quieter
from mistakes.life import GROWS
from mistakes.schedules import ANY, CHURN, Meddler, moved

ALIKE = "test_requests_that_are_alike_are_told_apart"
COLD = "test_a_cold_instance_says_the_same"
INPUT = "test_prompts_of_every_remainder_are_right"
RULE = "test_each_rule_of_the_sampling_contract_decides_a_code"


@mistake(ALIKE)
class SeedOfItsTwin(Decoder):
    """Requests of a call that differ only in the seed get the seed of the first."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        first: dict[tuple[object, ...], SamplingParams] = {}
        keys = [(each.embeds.sum().item(), replace(each.sampling, seed=0), each.history) for each in requests]
        return super().prefill(
            [
                replace(each, sampling=first.setdefault(key, each.sampling))
                for key, each in zip(keys, requests, strict=True)
            ]
        )


# fmt: off
enter_all(
    Requesting, "embeds",
    ("RowsOneAfterAnother", "Looks at the stride inside rows, and takes the rows to lie one after another.", ANY,
     lambda self, rows: rows.as_strided(rows.shape, (rows.shape[1] * rows.stride(1), rows.stride(1)))),
    ("FromTheStart", "Takes prompts from the start of their storage.", ANY,
     lambda self, rows: rows.as_strided(rows.shape, rows.stride(), 0)),
)
enter_all(
    Meddler, "prompt",
    ("ElevenLeft", "Its last tile of a long prompt is wrong when eleven of its 32 rows are used.", INPUT,
     lambda self, row, embeds: embeds * 1.01 if len(embeds) > 40 and len(embeds) % 32 == 11 else embeds),
)
enter_all(
    Ageing, "spoilt",
    ("ThirtyTwoStates", "With 32 states in a call, and no other number, the last one is wrong.", COMPANY,
     lambda self, states, codes, chunks: [*chunks[:-1], quieter(chunks[-1])] if len(chunks) == 32 else chunks),
    ("ManyAndLong", "Its buffer for calls of many states holds 400 frames in all.", LONG_CALLS,
     lambda self, states, codes, chunks: [*chunks[:-1], quieter(chunks[-1])]
     if len(codes) > 3 and sum(map(len, codes)) > 400 else chunks),
)
# fmt: on


@mistake(ANY)
class WritesIntoText(Decoder):
    """Adds to the caller's text rows."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)

        def write() -> list[Frame]:
            frames = take()
            for step in steps:
                step.text.add_(0.5)
            return frames

        return write


@mistake(CHURN)
class LongPause(Meddler):
    """A stream that was left out of more than 24 calls is a position late when it comes back."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._last: dict[int, int] = {}
        self._call = 0

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        self._last.pop(row, None)
        return embeds

    def shares(self, shares: list[Share]) -> list[Share]:
        self._call += 1
        late = [self._call - self._last.get(share.row, self._call) > 24 for share in shares]
        self._last |= {share.row: self._call for share in shares}
        return [moved(share) if paused else share for share, paused in zip(shares, late, strict=True)]


@mistake(COLD)
class GrowingWorkspace(Meddler):
    """A prompt longer than all before makes room, at the cost of what is pending for the others."""

    _most = 0

    def prompt(self, row: int, embeds: Tensor) -> Tensor:
        if len(embeds) > self._most:
            self._most = len(embeds)
            self._model.pending.hidden *= 0.95
        return embeds


class ByteWide(SamplerRows):
    def assign(self, row: int, params: SamplingParams, history: Sequence[int] = ()) -> None:
        super().assign(row, params, history)
        self._min_frames[row] %= 256


@mistake(RULE)
class MinimumInAByte(Decoder):
    """Keeps the minimum length in a byte."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._model.sampler.__class__ = ByteWide


@mistake(GROWS)
class KeepsContinuations(Decoder):
    """Keeps the prompts that came with a history."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        kept = [request.embeds.clone() for request in requests if request.history]
        self._kept = [*getattr(self, "_kept", ()), *kept]
        return super().prefill(requests)


@mistake(COPIES)
class EqualAges(Ageing):
    """Tells old states of a call apart by their age."""

    def spoilt(self, states: Sequence[Any], codes: Sequence[Tensor], chunks: list[Tensor]) -> list[Tensor]:
        first: dict[tuple[int, int], Tensor] = {}
        return [
            first.setdefault((state.age, len(fresh)), chunk) if state.age > 40 else chunk
            for state, fresh, chunk in zip(states, codes, chunks, strict=True)
        ]


@mistake(SCHEDULES)
class WritesIntoCodes(Quick):
    """Adds to the caller's codes."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks = super().decode(states, [fresh.clone() for fresh in codes])
        for fresh in codes:
            fresh += 1
        return chunks


@mistake(COPIES)
class SecondGeneration(Quick):
    """A copy of a copy is a new state."""

    @dataclass(eq=False)
    class GenerationState(StreamingState):
        generation: int = 0

        def copy(self) -> Self:
            twin = replace(super().copy(), generation=self.generation + 1)
            if twin.generation > 1:
                torch.as_tensor(twin.memory).zero_()
            return twin

    def open(self) -> StreamingState:
        return self.GenerationState(super().open().memory)
