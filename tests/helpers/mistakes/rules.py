"""Talker decoders that break one rule of the sampling contract."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, Frame, LoadContext
from megatalker.sampling import SamplerRows, sampler
from mistakes.bases import Requesting
from mistakes.catalogue import Decoder, enter_all, mistake

RULE = "test_each_rule_of_the_sampling_contract_decides_a_code"
ANY = "test_random_rules_together_choose_the_codes_of_the_contract"
PENALTY = "test_repetition_penalty_counts_the_generated_code_0_history"
EFFECT = "test_each_sampling_value_takes_effect"
BFLOAT16 = ("--dtype=bfloat16",)
DEMO = ("--checkpoint=demo",)


class Resampling(Decoder):
    """Has a sampler of other parts."""

    rows: ClassVar[type[SamplerRows]] = SamplerRows
    filters: ClassVar[type[sampler._Filters]] = sampler._Filters

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        healthy = self._model.sampler
        healthy.__class__ = self.rows
        for part in (healthy._talker, healthy._predictor):
            part.__class__ = self.filters


# fmt: off
enter_all(
    Requesting, "sampling",
    ("NoPenalty", "Skips the repetition penalty.", PENALTY, lambda self, _: {"repetition_penalty": 1.0}),
    ("Seedless", "Ignores the seed.", EFFECT, lambda self, _: {"seed": 0}),
    ("ShortSeed", "Ignores the high word of the seed.", (RULE, ANY),
     lambda self, request: {"seed": request.sampling.seed % 2**32}),
    ("DeafGreedy", "Greedy streams never end.", RULE,
     lambda self, request: {} if request.sampling.do_sample else {"min_new_tokens": 2**31 - 1}),
    ("EarlyEnd", "End-of-speech is suppressed for one frame less.", RULE,
     lambda self, request: {"min_new_tokens": max(0, request.sampling.min_new_tokens - 1)}, BFLOAT16),
    ("CountingAnew", "A continuation waits for ``min_new_tokens`` frames of its own.", RULE,
     lambda self, request: {"min_new_tokens": request.sampling.min_new_tokens + len(request.history)}),
    ("OneTemperature", "The predictor's codes are sampled with the temperature of code 0.", EFFECT,
     lambda self, request: {"predictor_temperature": request.sampling.temperature}, DEMO),
    ("DefaultTopK", "A missing top-k counts as 50.", RULE,
     lambda self, request: {key: getattr(request.sampling, key) or 50 for key in ("top_k", "predictor_top_k")}),
    ("NoTopP", "Ignores top-p.", EFFECT, lambda self, _: {"top_p": 1.0, "predictor_top_p": 1.0}, DEMO),
)
# fmt: on


class ZeroForgotten(SamplerRows):
    def choose_first(self, rows: Tensor, logits: Tensor) -> Tensor:
        self._seen[:, 0] = False
        return super().choose_first(rows, logits)


class Dividing(SamplerRows):
    def choose_first(self, rows: Tensor, logits: Tensor) -> Tensor:
        penalty = self._penalty[rows].float()
        undone = torch.where(self._seen[rows] & (logits < 0), logits / penalty / penalty, logits)
        return super().choose_first(rows, undone)


class Repeating(SamplerRows):
    def rest_noise(self, rows: Tensor, codebooks: int, size: int) -> Tensor:
        return self._noise(rows, 1, 1, size).expand(-1, codebooks, -1)


class Unsuppressing(SamplerRows):
    def choose_first(self, rows: Tensor, logits: Tensor) -> Tensor:
        self._suppressed &= False
        return super().choose_first(rows, logits)


enter_all(
    Resampling,
    "rows",
    ("ZeroUnpenalised", "The repetition penalty skips id 0.", RULE, ZeroForgotten),
    ("DividingAll", "The repetition penalty divides negative logits, too.", (RULE, ANY), Dividing),
    ("EqualNoise", "All codebooks of the predictor have the same noise.", (RULE, ANY), Repeating),
    ("SpecialIds", "Ids above the codes may be chosen.", RULE, Unsuppressing),
)


def _kept(choose: Callable[..., Tensor]) -> type[sampler._Filters]:
    """Filters that keep what ``choose`` says of scaled logits, top-k and dropped share of each row."""

    class Keeping(sampler._Filters):
        def choose(self, rows: Tensor, logits: Tensor, noise: Tensor, decay_rows: Tensor, ids: Tensor) -> Tensor:
            temperature, dropped = self._reals.index_select(0, rows).unsqueeze(-1).unbind(1)
            do_sample, top_k = self._integers.index_select(0, rows).unsqueeze(-1).unbind(1)
            scaled = sampler._divide(logits, temperature)
            kept = choose(scaled, top_k, dropped, decay_rows)
            sampled = torch.where(kept, scaled + noise, -torch.inf)
            return sampler._lowest_argmax(torch.where(do_sample != 0, sampled, logits), ids)

    return Keeping


def _top_p_first(scaled: Tensor, top_k: Tensor, dropped: Tensor, decay_rows: Tensor) -> Tensor:
    everything = torch.full_like(top_k, 2**31)
    by_p = scaled >= sampler._threshold(scaled, everything, dropped, decay_rows)
    return by_p & (scaled >= sampler._threshold(scaled, top_k, torch.full_like(dropped, -1.0), decay_rows))


def _without_ties(scaled: Tensor, top_k: Tensor, dropped: Tensor, decay_rows: Tensor) -> Tensor:
    ranks = scaled.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
    return (ranks < top_k) & (scaled >= sampler._threshold(scaled, top_k, dropped, decay_rows))


def _one_more(scaled: Tensor, top_k: Tensor, dropped: Tensor, decay_rows: Tensor) -> Tensor:
    threshold = sampler._threshold(scaled, top_k, dropped, decay_rows)
    below = scaled.masked_fill(scaled >= threshold, -torch.inf).amax(-1, keepdim=True)
    return scaled >= torch.where(dropped > 0, below, threshold)


class HighestFirst(sampler._Filters):
    def choose(self, rows: Tensor, logits: Tensor, noise: Tensor, decay_rows: Tensor, ids: Tensor) -> Tensor:
        tied = logits == logits.amax(-1, keepdim=True)
        highest = torch.where(tied, ids, -1).amax(-1)
        greedy = self._integers.index_select(0, rows)[:, 0] == 0
        return torch.where(greedy, highest, super().choose(rows, logits, noise, decay_rows, ids))


enter_all(
    Resampling,
    "filters",
    ("TopPFirst", "Applies top-p before top-k.", RULE, _kept(_top_p_first), BFLOAT16),
    ("CutTies", "Top-k keeps exactly k ids: of equal ones at its edge the lowest.", (RULE, ANY), _kept(_without_ties)),
    ("WideTopP", "Top-p keeps one id more.", (RULE, ANY), _kept(_one_more)),
    ("HighestOfEqual", "Greedy takes the highest of equal ids.", RULE, HighestFirst),
)


class Remembering(Decoder):
    """Changes the codes that a stream remembers for the repetition penalty."""

    def seen(self, steps: Sequence[DecodeStep], before: Tensor, after: Tensor) -> Tensor:
        raise NotImplementedError

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        rows = [self._table[step.stream].row for step in steps]
        table = self._model.sampler._seen
        take = super().decode(steps, return_logits=return_logits)

        def change() -> list[Frame]:
            before = table[rows]
            frames = take()
            table[rows] = self.seen(steps, before, table[rows])
            return frames

        return change


# fmt: off
enter_all(
    Remembering, "seen",
    ("ForcedForgotten", "Forced codes are not remembered for the repetition penalty.", RULE,
     lambda self, steps, before, after: torch.where(
         torch.tensor([step.forced is not None for step in steps])[:, None], before, after)),
    ("LastOnly", "The repetition penalty counts the last frame only.", RULE,
     lambda self, steps, before, after: after & ~before),
)
# fmt: on


@mistake(RULE)
class Observed(Decoder):
    """A frame whose logits are asked for is chosen greedily."""

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        take = super().decode(steps, return_logits=return_logits)
        parts: list[Any] = [self._model.sampler._talker, self._model.sampler._predictor]

        def greedy() -> list[Frame]:
            kept = [part._integers.clone() for part in parts]
            for part in parts if return_logits else ():
                part._integers[:, 0] = 0
            frames = take()
            for part, integers in zip(parts, kept, strict=True):
                part._integers.copy_(integers)
            return frames

        return greedy
