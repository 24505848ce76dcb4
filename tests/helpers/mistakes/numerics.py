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
from mistakes.bases import Requesting, Stepping
from mistakes.catalogue import Decoder, enter_all, mistake

LONG = "test_frames_stay_right_along_a_long_stream"
PROMPTS = "test_long_prompts_and_long_histories_go_on_right"
CAPACITY = "test_the_last_positions_are_right_and_the_next_is_refused"
KINDS = "test_models_of_every_kind_speak_as_reference"
ERRORS = "test_float32_logits_have_float32_errors"


class EachFrame(Decoder):
    """Changes a stream before each frame."""

    def touch(self, entry: TableEntry) -> None:
        raise NotImplementedError

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        for step in steps:
            self.touch(self._table[step.stream])
        return super().decode(steps, return_logits=return_logits)


# fmt: off
enter_all(
    EachFrame, "touch",
    ("RepeatingNoise", "Repeats its noise every 256 frames.", (LONG, PROMPTS),
     lambda self, entry: self._model.sampler._frame[entry.row].remainder_(256)),
)
# fmt: on


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
class ShortPenalty(EachFrame):
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
    """Replaces a function of a layer's step."""

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


@mistake(KINDS)
class Unshifted(Wrong):
    """Softmax without subtracting the largest score."""

    def replaced(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        scores = (query.unsqueeze(3) * keys.float().unsqueeze(2)).sum(-1) * query.shape[-1] ** -0.5
        weights = scores.exp() * visible[:, None, None]
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights.unsqueeze(-1) * values.float().unsqueeze(2)).sum(3)


def _wrong_scale(talker: Any) -> float:
    return float((talker.hidden_size // talker.num_heads / talker.head_dim) ** -0.5)


class Norms(Wrong):
    name = "rms_norm"

    def replaced(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        raise NotImplementedError


# fmt: off
enter_all(
    Wrong, "replaced",
    ("ShortSighted", "Attention sees the last 512 positions only.", (LONG, PROMPTS),
     lambda self, query, keys, values, visible: self.right(
         query, keys, values, visible & (torch.arange(visible.shape[1]) >= visible.sum(1, keepdim=True) - 512))),
    ("ScaledByWidth", "Scales attention by hidden size / heads instead of the head's size.", (ERRORS, KINDS),
     lambda self, query, *others: self.right(query * _wrong_scale(self._model.config.talker), *others)),
)
enter_all(
    Norms, "replaced",
    ("LooseEpsilon", "An epsilon of 1e-5 for 1e-6 in every norm of a layer.", KINDS,
     lambda self, x, weight, eps: self.right(x, weight, 1e-5)),
    ("LooseHeadEpsilon", "An epsilon of 1e-5 for 1e-6 in the norms of queries and keys.", KINDS,
     lambda self, x, weight, eps: self.right(x, weight, 1e-5 if x.dim() == 3 else eps)),
    ("LooseLayerEpsilon", "An epsilon of 1e-5 for 1e-6 before attention and MLP, hidden by 16-bit arithmetic.", KINDS,
     lambda self, x, weight, eps: self.right(x, weight, 1e-5 if x.dim() == 2 else eps), ("--dtype=bfloat16",)),
)
# fmt: on


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


class Angles(Decoder):
    """Changes the table of rotary angles."""

    def at(self, positions: Tensor) -> Tensor:
        raise NotImplementedError

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        positions = self.at(torch.arange(self._model.cache_positions))
        cos, sin = self._model._talker_rope
        self._model._talker_rope = cos[positions], sin[positions]


# fmt: off
enter_all(
    Angles, "at",
    ("Wrapping", "Positions are counted modulo 1024.", PROMPTS, lambda self, positions: positions % 1024),
    ("WrongEnd", "The last two positions of the capacity have the angle of another.", CAPACITY,
     lambda self, positions: torch.where(
         (positions >= self.capabilities.max_positions - 2) & (positions < self.capabilities.max_positions),
         1, positions)),
)
enter_all(
    Requesting, "embeds",
    ("RoundedPrompts", "Prompts longer than 520 rows are rounded to bfloat16.", PROMPTS,
     lambda self, rows: rows.bfloat16() if len(rows) > 520 else rows),
)
enter_all(
    Stepping, "text",
    ("OneFrame", "Frame 17 is fed a text row rounded to bfloat16.", ERRORS,
     lambda self, step: step.text.bfloat16() if self._table[step.stream].frames == 17 else step.text),
)
# fmt: on


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
