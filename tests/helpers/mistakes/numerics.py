"""Talker decoders that compute something else: at some length, for some shape, or by a little."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import (
    DecodeStep,
    Frame,
    Limit,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerCapabilities,
)
from megatalker.plugins.stream_table import TableEntry
from megatalker_backends.compiled import model, stack
from megatalker_backends.compiled.runner import DirectRunner
from mistakes.catalogue import Decoder, mistake

LONG = "test_frames_stay_right_along_a_long_stream"
PROMPTS = "test_long_prompts_and_long_histories_go_on_right"
CAPACITY = "test_the_last_positions_are_right_and_the_next_is_refused"
KINDS = "test_models_of_every_kind_speak_as_reference"
ERRORS = "test_float32_logits_have_float32_errors"


class EachFrame(Decoder):
    """For mistakes that touch a stream before its next frame."""

    def touch(self, entry: TableEntry) -> None:
        raise NotImplementedError

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        for step in steps:
            self.touch(self._table[step.stream])
        return super().decode(steps, return_logits=return_logits)


@mistake(LONG)
class Slipping(EachFrame):
    """Positions are off by one from frame 200 on."""

    def touch(self, entry: TableEntry) -> None:
        entry.positions += entry.frames == 200


@mistake(LONG)
class Tired(EachFrame):
    """Forgets its oldest key and value at frame 280."""

    def touch(self, entry: TableEntry) -> None:
        if entry.frames == 280:
            for cache in self._model._talker_cache:
                cache.keys[entry.row, :, 0] = 0
                cache.values[entry.row, :, 0] = 0


@mistake(LONG)
class PageEnd(EachFrame):
    """Takes the rotary angle of the position before at each multiple of 256."""

    def touch(self, entry: TableEntry) -> None:
        if not hasattr(self, "_angles"):
            self._angles = self._model._talker_rope
            wrong = torch.arange(len(self._angles[0]))
            wrong[256::256] -= 1
            self._model._talker_rope = tuple(table[wrong] for table in self._angles)


@mistake(LONG, PROMPTS)
class RepeatingNoise(EachFrame):
    """Repeats its noise every 256 frames."""

    def touch(self, entry: TableEntry) -> None:
        self._model.sampler._frame[entry.row] %= 256


@mistake(LONG, PROMPTS)
class Forgetful(EachFrame):
    """The repetition penalty forgets codes older than 64 frames."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._said: dict[StreamHandle, list[int]] = {}

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        self._said |= {handle: list(request.history) for handle, request in zip(handles, requests, strict=True)}
        return handles

    def touch(self, entry: TableEntry) -> None:
        seen = self._model.sampler._seen[entry.row]
        seen[:] = False
        seen[self._said[entry.handle][-64:]] = True

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)

        def note() -> list[Frame]:
            frames = take()
            for frame in frames:
                self._said[frame.stream] += frame.codes[:1] if frame.codes else ()
            return frames

        return note


class Wrong(Decoder):
    """For mistakes inside a step of a layer: ``replaced`` stands in for a function of the stack."""

    name = "attend"

    def replaced(self, *arguments: Any) -> Tensor:
        raise NotImplementedError

    @property
    def right(self) -> Callable[..., Tensor]:
        return self._right

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._right = getattr(stack, self.name)

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        with patch.object(stack, self.name, self.replaced):
            return super().prefill(requests)

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)

        def patched() -> list[Frame]:
            with patch.object(stack, self.name, self.replaced):
                return take()

        return patched


@mistake(LONG, PROMPTS)
class ShortSighted(Wrong):
    """Attention sees the last 512 positions only."""

    def replaced(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        last = visible.sum(1, keepdim=True)
        return self.right(query, keys, values, visible & (torch.arange(visible.shape[1]) >= last - 512))


@mistake(KINDS)
class Unshifted(Wrong):
    """Softmax without subtracting the largest score."""

    def replaced(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        scores = (query.unsqueeze(3) * keys.float().unsqueeze(2)).sum(-1) * query.shape[-1] ** -0.5
        weights = scores.exp() * visible[:, None, None]
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights.unsqueeze(-1) * values.float().unsqueeze(2)).sum(3)


@mistake(ERRORS, KINDS)
class ScaledByWidth(Wrong):
    """Scales attention by hidden size / heads instead of the head's size."""

    def replaced(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        shape = self._model.config.talker
        wrong = (shape.hidden_size // shape.num_heads / shape.head_dim) ** -0.5
        return self.right(query * wrong, keys, values, visible)


class Norms(Wrong):
    name = "rms_norm"

    def replaced(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        raise NotImplementedError


@mistake(KINDS)
class LooseEpsilon(Norms):
    """An epsilon of 1e-5 for 1e-6 in every norm of a layer."""

    def replaced(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.right(x, weight, 1e-5)


@mistake(KINDS)
class LooseHeadEpsilon(Norms):
    """An epsilon of 1e-5 for 1e-6 in the norms of queries and keys."""

    def replaced(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.right(x, weight, 1e-5 if x.dim() == 3 else eps)


@mistake(KINDS, options=("--dtype=bfloat16",))
class LooseLayerEpsilon(Norms):
    """An epsilon of 1e-5 for 1e-6 in the norms before attention and MLP, and 16-bit arithmetic to hide it."""

    def replaced(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.right(x, weight, 1e-5 if x.dim() == 2 else eps)


@mistake(KINDS)
class LooseLastEpsilon(Decoder):
    """An epsilon of 1e-5 for 1e-6 in the last norm of both stacks."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)

        def patched() -> list[Frame]:
            right = model.rms_norm
            with patch.object(model, "rms_norm", lambda x, weight, eps: right(x, weight, 10 * eps)):
                return take()

        return patched


@mistake(PROMPTS)
class RoundedPrompts(Decoder):
    """Prompts longer than 520 rows are rounded to bfloat16."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return super().prefill(
            [
                replace(request, embeds=request.embeds.bfloat16()) if len(request.embeds) > 520 else request
                for request in requests
            ]
        )


class Angles(Decoder):
    """For mistakes in the table of rotary angles."""

    def at(self, positions: Tensor) -> Tensor:
        raise NotImplementedError

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        positions = self.at(torch.arange(self._model.cache_positions))
        cos, sin = self._model._talker_rope
        self._model._talker_rope = cos[positions], sin[positions]


@mistake(PROMPTS)
class Wrapping(Angles):
    """Positions are counted modulo 1024."""

    def at(self, positions: Tensor) -> Tensor:
        return positions % 1024


@mistake(CAPACITY)
class WrongEnd(Angles):
    """The last two positions of the capacity have the angle of another."""

    def at(self, positions: Tensor) -> Tensor:
        last = self.capabilities.max_positions
        assert isinstance(last, int)
        return torch.where((positions >= last - 2) & (positions < last), 1, positions)


@mistake(PROMPTS)
class Boundless(Decoder):
    """Claims to have no limit of positions, and has one of 4096."""

    @property
    def capabilities(self) -> TalkerCapabilities:
        return replace(super().capabilities, max_positions=Limit.NONE)


@mistake(CAPACITY)
class OneTooMany(Decoder):
    """Claims two positions more than it keeps keys for."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        last = self.capabilities.max_positions
        assert isinstance(last, int)
        held = [self._table[step.stream] for step in steps]
        late = [entry for entry in held if entry.positions >= last - 2]
        before = [entry.positions for entry in late]
        for entry in late:
            entry.positions = last - 3
        take = super().decode(steps, return_logits=return_logits)

        def restore() -> list[Frame]:
            frames = take()
            for entry, positions in zip(late, before, strict=True):
                entry.positions = positions + 1
            return frames

        return restore


@mistake(PROMPTS)
class Restarting(Decoder):
    """A continuation starts with the noise of frame 0."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        for handle in handles:
            self._model.sampler._frame[self._table[handle].row] = 0
        return handles


@mistake(PROMPTS)
class Shifted(Decoder):
    """A continuation goes on one position early."""

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = super().prefill(requests)
        for handle, request in zip(handles, requests, strict=True):
            self._table[handle].positions -= bool(request.history)
        return handles


@mistake(KINDS)
class Unprojected(Decoder):
    """Forgets the projection between talker and predictor."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        weights, width = self._model.weights, checkpoint.config.predictor.hidden_size
        if weights.projection is not None:
            identity = torch.eye(width, checkpoint.config.talker.hidden_size)
            self._model.weights = replace(
                weights,
                projection=(identity, torch.zeros(width)),
                predictor_embeddings=weights.embeddings[:, :width].contiguous(),
            )
            self._runner = DirectRunner(self._model)


@mistake(KINDS)
class Pairs(Wrong):
    """Two query heads share a key head, whatever the checkpoint says."""

    def replaced(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        heads = torch.arange(query.shape[1] * query.shape[2]) // 2 % keys.shape[1]
        flat = query.flatten(1, 2).unsqueeze(2)
        return self.right(flat, keys[:, heads], values[:, heads], visible).view_as(query)


@mistake(ERRORS)
class OneCodebook(Decoder):
    """One codebook's head is stored with 12 bits."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        head = self._model.weights.rest_heads[11]
        head.copy_((head.view(torch.int32) + (1 << 11) >> 12 << 12).view(torch.float32))


@mistake(ERRORS)
class OneFrame(Decoder):
    """Frame 17 is fed a text row rounded to bfloat16."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        rounded = [
            replace(step, text=step.text.bfloat16()) if self._table[step.stream].frames == 17 else step
            for step in steps
        ]
        return super().decode(rounded, return_logits=return_logits)
