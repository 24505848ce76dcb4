"""Talker decoders that break one rule of the sampling contract."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamHandle, StreamRequest
from megatalker.sampling import SamplerRows, SamplingParams, sampler
from mistakes.catalogue import Decoder, mistake
from mistakes.talkers import with_sampling

RULE = "test_each_rule_of_the_sampling_contract_decides_a_code"
ANY = "test_random_rules_together_choose_the_codes_of_the_contract"
EFFECT = "test_each_sampling_value_takes_effect"
BFLOAT16 = ("--dtype=bfloat16",)
DEMO = ("--checkpoint=demo",)


class Resampling(Decoder):
    """For mistakes in the sampler: its parts are of these classes instead."""

    rows: ClassVar[type[SamplerRows]] = SamplerRows
    filters: ClassVar[type[sampler._Filters]] = sampler._Filters

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        healthy = self._model.sampler
        healthy.__class__ = self.rows
        for part in (healthy._talker, healthy._predictor):
            part.__class__ = self.filters


class Requesting(Decoder):
    """For mistakes in what a request asks for."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        raise NotImplementedError

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        return super().prefill([self.changed(request) for request in requests])


class SkippingZero(SamplerRows):
    def choose_first(self, rows: Tensor, logits: Tensor) -> Tensor:
        self._seen[:, 0] = False
        return super().choose_first(rows, logits)


@mistake(RULE)
class ZeroUnpenalised(Resampling):
    """The repetition penalty skips id 0."""

    rows = SkippingZero


class Dividing(SamplerRows):
    def choose_first(self, rows: Tensor, logits: Tensor) -> Tensor:
        penalty = self._penalty[rows].float()
        undone = torch.where(self._seen[rows] & (logits < 0), logits / penalty / penalty, logits)
        return super().choose_first(rows, undone)


@mistake(RULE, ANY)
class DividingAll(Resampling):
    """The repetition penalty divides negative logits, too."""

    rows = Dividing


class Repeating(SamplerRows):
    def rest_noise(self, rows: Tensor, codebooks: int, size: int) -> Tensor:
        return self._noise(rows, 1, 1, size).expand(-1, codebooks, -1)


@mistake(RULE, ANY)
class EqualNoise(Resampling):
    """All codebooks of the predictor have the same noise."""

    rows = Repeating


class Unsuppressing(SamplerRows):
    def choose_first(self, rows: Tensor, logits: Tensor) -> Tensor:
        self._suppressed &= False
        return super().choose_first(rows, logits)


@mistake(RULE)
class SpecialIds(Resampling):
    """Ids above the codes may be chosen."""

    rows = Unsuppressing


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


@mistake(RULE, options=BFLOAT16)
class TopPFirst(Resampling):
    """Applies top-p before top-k."""

    filters = _kept(_top_p_first)


def _without_ties(scaled: Tensor, top_k: Tensor, dropped: Tensor, decay_rows: Tensor) -> Tensor:
    ranks = scaled.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
    return (ranks < top_k) & (scaled >= sampler._threshold(scaled, top_k, dropped, decay_rows))


@mistake(RULE, ANY)
class CutTies(Resampling):
    """Top-k keeps exactly k ids: of equal ones at its edge the lowest."""

    filters = _kept(_without_ties)


def _one_more(scaled: Tensor, top_k: Tensor, dropped: Tensor, decay_rows: Tensor) -> Tensor:
    threshold = sampler._threshold(scaled, top_k, dropped, decay_rows)
    below = scaled.masked_fill(scaled >= threshold, -torch.inf).amax(-1, keepdim=True)
    return scaled >= torch.where(dropped > 0, below, threshold)


@mistake(RULE, ANY)
class WideTopP(Resampling):
    """Top-p keeps one id more."""

    filters = _kept(_one_more)


class HighestFirst(sampler._Filters):
    def choose(self, rows: Tensor, logits: Tensor, noise: Tensor, decay_rows: Tensor, ids: Tensor) -> Tensor:
        tied = logits == logits.amax(-1, keepdim=True)
        highest = torch.where(tied, ids, -1).amax(-1)
        greedy = self._integers.index_select(0, rows)[:, 0] == 0
        return torch.where(greedy, highest, super().choose(rows, logits, noise, decay_rows, ids))


@mistake(RULE)
class HighestOfEqual(Resampling):
    """Greedy takes the highest of equal ids."""

    filters = HighestFirst


@mistake(RULE)
class DeafGreedy(Requesting):
    """Greedy streams never end."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        return request if request.sampling.do_sample else with_sampling(request, min_new_tokens=2**31 - 1)


@mistake(RULE, options=BFLOAT16)
class EarlyEnd(Requesting):
    """End-of-speech is suppressed for one frame less."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        return with_sampling(request, min_new_tokens=max(0, request.sampling.min_new_tokens - 1))


@mistake(RULE)
class CountingAnew(Requesting):
    """A continuation waits for ``min_new_tokens`` frames of its own."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        return with_sampling(request, min_new_tokens=request.sampling.min_new_tokens + len(request.history))


@mistake(RULE, ANY)
class ShortSeed(Requesting):
    """Ignores the high word of the seed."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        return with_sampling(request, seed=request.sampling.seed % 2**32)


@mistake(EFFECT, options=DEMO)
class OneTemperature(Requesting):
    """The predictor's codes are sampled with the temperature of code 0."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        return with_sampling(request, predictor_temperature=request.sampling.temperature)


@mistake(RULE)
class DefaultTopK(Requesting):
    """Takes no top-k for one of 50."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        sampling: SamplingParams = request.sampling
        return with_sampling(request, top_k=sampling.top_k or 50, predictor_top_k=sampling.predictor_top_k or 50)


@mistake(EFFECT, options=DEMO)
class NoTopP(Requesting):
    """Ignores top-p."""

    def changed(self, request: StreamRequest) -> StreamRequest:
        return with_sampling(request, top_p=1.0, predictor_top_p=1.0)


class Remembering(Decoder):
    """For mistakes in what a stream remembers for the repetition penalty."""

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


@mistake(RULE)
class ForcedForgotten(Remembering):
    """Forced codes are not remembered for the repetition penalty."""

    def seen(self, steps: Sequence[DecodeStep], before: Tensor, after: Tensor) -> Tensor:
        forced = torch.tensor([step.forced is not None for step in steps])
        return torch.where(forced[:, None], before, after)


@mistake(RULE)
class LastOnly(Remembering):
    """The repetition penalty counts the last frame only."""

    def seen(self, steps: Sequence[DecodeStep], before: Tensor, after: Tensor) -> Tensor:
        return after & ~before


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
