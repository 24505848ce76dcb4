"""One choice of a code, as the sampling contract makes it, and as samplers make it that got one rule wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.sampling.numpy_sampler import (
    Floats,
    choose,
    first_code_rules,
    gumbel_noise,
    keep_top_k,
    keep_top_p,
)

_TRIALS = 8


@dataclass(frozen=True)
class Choice:
    """Everything that the contract lets a code depend on."""

    logits: Floats
    params: SamplingParams
    codebook: int
    frame: int
    history: Sequence[int]
    """Code 0 of all frames before."""
    vocabulary: CodeVocabulary
    given: int = 0
    """Number of codes of ``history`` that came with the request."""

    def code(self) -> int:
        """The code that every backend must choose."""
        return choose(
            self.logits,
            self.params,
            codebook=self.codebook,
            frame=self.frame,
            history=self.history,
            vocabulary=self.vocabulary,
        )

    def codes_within(self, error: float) -> set[int]:
        """Return the codes that may be chosen from logits with this relative error. Equal logits stay equal."""
        values, places = np.unique(self.logits, return_inverse=True)
        draws = np.random.default_rng(self.params.seed % 2**32).uniform(-2 * error, 2 * error, (_TRIALS, len(values)))
        wrong = (replace(self, logits=(values * (1 + draw)).astype(np.float32)[places]) for draw in draws)
        return {self.code(), *(choice.code() for choice in wrong)}

    def with_(self, **params: object) -> "Choice":
        """The same with other sampling values."""
        return replace(self, params=replace(self.params, **params))  # type: ignore[arg-type]

    @property
    def first_logits(self) -> Floats:
        """After rules 1 and 2, which are for code 0 only."""
        if self.codebook:
            return self.logits
        return first_code_rules(self.logits, self.params, self.frame, self.history, self.vocabulary)

    @property
    def filters(self) -> tuple[float, int | None, float]:
        """Temperature, top-k and top-p."""
        params = self.params
        if self.codebook:
            return params.predictor_temperature, params.predictor_top_k, params.predictor_top_p
        return params.temperature, params.top_k, params.top_p

    def scores(self) -> Floats:
        """Scores of which the choice is the largest, in units of logits; barred and filtered ids have none."""
        temperature, top_k, top_p = self.filters
        if not (self.params.predictor_do_sample if self.codebook else self.params.do_sample):
            return self.first_logits
        scaled = self.first_logits / np.float32(temperature)
        kept = keep_top_p(scaled, keep_top_k(scaled, top_k), top_p)
        noise = gumbel_noise(self.params.seed, self.codebook, self.frame, scaled.size)
        return np.asarray(np.where(kept, scaled + noise, -np.inf) * temperature, np.float32)

    def among(self, scaled: Floats, kept: np.ndarray, noise: Floats | None = None) -> int:
        """The choice among ``kept`` ids."""
        if noise is None:
            noise = gumbel_noise(self.params.seed, self.codebook, self.frame, scaled.size)
        return int(np.argmax(np.where(kept, scaled + noise, -np.inf)))


WrongRule = Callable[[Choice], int]


def _with(**params: object) -> WrongRule:
    return lambda choice: choice.with_(**params).code()


def _history(change: Callable[[Sequence[int]], Sequence[int]]) -> WrongRule:
    return lambda choice: replace(choice, history=change(choice.history)).code()


def _penalised(penalise: Callable[[float, int, float], float]) -> WrongRule:
    """Penalises otherwise than the contract says: by logit, how often the id was said, and penalty."""

    def wrong(choice: Choice) -> int:
        logits, history = choice.logits.copy(), list(choice.history)
        for code in set(history):
            logits[code] = penalise(float(logits[code]), history.count(code), choice.params.repetition_penalty)
        return replace(choice, logits=logits, history=()).code()

    return wrong


def _noise(change: Callable[[Choice], tuple[int, int, int]]) -> WrongRule:
    """Noise of another seed, codebook or frame."""

    def wrong(choice: Choice) -> int:
        temperature, top_k, top_p = choice.filters
        scaled = choice.first_logits / np.float32(temperature)
        seed, codebook, frame = change(choice)
        noise = gumbel_noise(seed % 2**64, codebook, frame, scaled.size)
        return choice.among(scaled, keep_top_p(scaled, keep_top_k(scaled, top_k), top_p), noise)

    return wrong


def _frames(change: Callable[[int], int]) -> WrongRule:
    return _noise(lambda choice: (choice.params.seed, choice.codebook, change(choice.frame)))


def _seeds(change: Callable[[int], int]) -> WrongRule:
    return _noise(lambda choice: (change(choice.params.seed), choice.codebook, choice.frame))


def _kept(keep: Callable[[Floats, int, float], np.ndarray]) -> WrongRule:
    """Keeps other ids than top-k and top-p do."""

    def wrong(choice: Choice) -> int:
        temperature, top_k, top_p = choice.filters
        scaled = choice.first_logits / np.float32(temperature)
        return choice.among(scaled, keep(scaled, top_k or scaled.size, top_p))

    return wrong


def _barred_late(choice: Choice) -> int:
    """Filters first, bars special ids then."""
    temperature, top_k, top_p = choice.filters
    kept = keep_top_p(scaled := choice.logits / np.float32(temperature), keep_top_k(scaled, top_k), top_p)
    return choice.among(scaled, kept & np.isfinite(choice.first_logits))


def _filtered_before_the_penalty(choice: Choice) -> int:
    temperature, top_k, top_p = choice.filters
    plain = replace(choice, history=()).first_logits / np.float32(temperature)
    return choice.among(
        choice.first_logits / np.float32(temperature), keep_top_p(plain, keep_top_k(plain, top_k), top_p)
    )


def _cut(scaled: Floats, count: int, order: int) -> np.ndarray:
    """Exactly ``count`` ids: of equal ones the lowest (``order`` 1) or the highest (-1)."""
    ids = np.arange(scaled.size)
    kept = np.zeros(scaled.size, bool)
    kept[np.lexsort((order * ids, -scaled))[:count]] = True
    return kept


def _one_more(scaled: Floats, kept: np.ndarray) -> np.ndarray:
    return np.asarray(kept | (scaled == scaled[~kept].max(initial=-np.inf)))


def _one_fewer(scaled: Floats, kept: np.ndarray) -> np.ndarray:
    return np.asarray(kept & ((scaled > scaled[kept].min()) | (scaled == scaled.max())))


def _every(scaled: Floats) -> np.ndarray:
    return np.ones(scaled.size, bool)


def _highest(choice: Choice) -> int:
    logits = choice.first_logits
    return int(logits.size - 1 - np.argmax(logits[::-1]))


def _nearby_noise(shift: int) -> WrongRule:
    def wrong(choice: Choice) -> int:
        temperature, top_k, top_p = choice.filters
        scaled = choice.first_logits / np.float32(temperature)
        noise = gumbel_noise(choice.params.seed, choice.codebook, choice.frame, scaled.size)
        return choice.among(scaled, keep_top_p(scaled, keep_top_k(scaled, top_k), top_p), np.roll(noise, shift))

    return wrong


WRONG: Mapping[str, WrongRule] = {
    "skips the repetition penalty": _history(lambda history: ()),
    "does not penalise id 0": _history(lambda history: [code for code in history if code]),
    "penalises an id once for each time it was said": _penalised(
        lambda logit, seen, p: logit * p**seen if logit < 0 else logit / p**seen
    ),
    "divides negative logits by the penalty": _penalised(lambda logit, seen, p: logit / p),
    "multiplies positive logits by the penalty": _penalised(lambda logit, seen, p: logit * p),
    "subtracts the penalty": _penalised(lambda logit, seen, p: logit - p),
    "penalises negative logits only": _penalised(lambda logit, seen, p: logit * p if logit < 0 else logit),
    "penalises positive logits only": _penalised(lambda logit, seen, p: logit / p if logit > 0 else logit),
    "takes a penalty below 1 for 1": lambda choice: choice.with_(
        repetition_penalty=max(1.0, choice.params.repetition_penalty)
    ).code(),
    "penalises the last code only": _history(lambda history: history[-1:]),
    "forgets codes older than 32 frames": _history(lambda history: history[-32:]),
    "forgets codes older than 64 frames": _history(lambda history: history[-64:]),
    "forgets codes older than 256 frames": _history(lambda history: history[-256:]),
    "forgets the history of a continuation": lambda choice: replace(
        choice, history=choice.history[choice.given :]
    ).code(),
    "forgets codes that it did not choose itself": _history(lambda history: ()),
    "remembers the history of the request only": lambda choice: replace(
        choice, history=choice.history[: choice.given]
    ).code(),
    "penalises codes of all codebooks": _history(lambda history: [*history, 0]),  # of forced frames, where they are 0
    "filters before the penalty": _filtered_before_the_penalty,
    "ignores end-of-speech": _with(min_new_tokens=2**31 - 1),
    "ignores min_new_tokens": _with(min_new_tokens=0),
    "suppresses end-of-speech one frame longer": lambda choice: choice.with_(
        min_new_tokens=choice.params.min_new_tokens + 1
    ).code(),
    "suppresses end-of-speech one frame shorter": lambda choice: choice.with_(
        min_new_tokens=max(0, choice.params.min_new_tokens - 1)
    ).code(),
    "counts min_new_tokens anew in a continuation": lambda choice: choice.with_(
        min_new_tokens=choice.params.min_new_tokens + choice.given
    ).code(),
    "chooses special ids": lambda choice: replace(
        choice, vocabulary=replace(choice.vocabulary, first_suppressed_id=choice.vocabulary.size)
    ).code(),
    "bars special ids after the filters": _barred_late,
    "takes the highest of equal ids": _highest,
    "samples where it should be greedy": _with(do_sample=True, predictor_do_sample=True),
    "is greedy where it should sample": _with(do_sample=False, predictor_do_sample=False),
    "ignores the temperature": _with(temperature=1.0, predictor_temperature=1.0),
    "takes the default temperature": _with(temperature=0.9, predictor_temperature=0.9),
    "multiplies by the temperature": lambda choice: choice.with_(
        temperature=1 / choice.params.temperature, predictor_temperature=1 / choice.params.predictor_temperature
    ).code(),
    "filters before the temperature": lambda choice: choice.among(
        choice.first_logits / np.float32(choice.filters[0]),
        keep_top_p(choice.first_logits, keep_top_k(choice.first_logits, choice.filters[1]), choice.filters[2]),
    ),
    "ignores top-k": _with(top_k=None, predictor_top_k=None),
    "keeps 30 ids without a top-k": _with(top_k=30, predictor_top_k=30),
    "keeps 50 ids without a top-k": _with(top_k=50, predictor_top_k=50),
    "keeps 64 ids at most": _with(top_k=64, predictor_top_k=64),
    "keeps one id more than top-k": _kept(lambda z, k, p: keep_top_p(z, keep_top_k(z, k + 1), p)),
    "keeps one id less than top-k": _kept(lambda z, k, p: keep_top_p(z, keep_top_k(z, max(1, k - 1)), p)),
    "cuts ties at the edge of top-k, keeping low ids": _kept(lambda z, k, p: _cut(z, k, 1)),
    "cuts ties at the edge of top-k, keeping high ids": _kept(lambda z, k, p: _cut(z, k, -1)),
    "drops all ties at the edge of top-k": _kept(lambda z, k, p: z > np.sort(z)[-k - 1]),
    "ignores top-p": _with(top_p=1.0, predictor_top_p=1.0),
    "takes 1 - top_p for top_p": lambda choice: choice.with_(
        top_p=1 - choice.params.top_p or 1.0, predictor_top_p=1 - choice.params.predictor_top_p or 1.0
    ).code(),
    "keeps one id more than top-p": _kept(lambda z, k, p: _one_more(z, keep_top_p(z, keep_top_k(z, k), p))),
    "keeps one id less than top-p": _kept(lambda z, k, p: _one_fewer(z, keep_top_p(z, keep_top_k(z, k), p))),
    "cuts ties at the edge of top-p": _kept(lambda z, k, p: _cut(z, int(np.ceil(p * (z == z.max()).sum())), 1)),
    "applies top-p before top-k": _kept(lambda z, k, p: keep_top_p(z, _every(z), p) & keep_top_k(z, k)),
    "takes the predictor's values for code 0": lambda choice: choice.with_(
        do_sample=choice.params.predictor_do_sample,
        temperature=choice.params.predictor_temperature,
        top_k=choice.params.predictor_top_k,
        top_p=choice.params.predictor_top_p,
    ).code(),
    "takes code 0's values for the predictor": lambda choice: choice.with_(
        predictor_do_sample=choice.params.do_sample,
        predictor_temperature=choice.params.temperature,
        predictor_top_k=choice.params.top_k,
        predictor_top_p=choice.params.top_p,
    ).code(),
    "penalises later codes, too": _penalised(lambda logit, seen, p: logit * p if logit < 0 else logit / p),
    "ignores the seed": _seeds(lambda seed: 0),
    "ignores the seed's high word": _seeds(lambda seed: seed % 2**32),
    "ignores the seed's low word": _seeds(lambda seed: seed >> 32 << 32),
    "ignores the seed's highest bit": _seeds(lambda seed: seed % 2**63),
    "exchanges the words of the seed": _seeds(lambda seed: seed % 2**32 << 32 | seed >> 32),
    "rounds the seed to float64": _seeds(lambda seed: int(float(seed))),
    "has the same noise in each frame": _frames(lambda frame: 0),
    "counts frames anew in a continuation": _noise(
        lambda choice: (choice.params.seed, choice.codebook, choice.frame - choice.given)
    ),
    "is one frame ahead with its noise": _frames(lambda frame: frame + 1),
    "is one frame late with its noise": _frames(lambda frame: frame - 1),
    "repeats its noise every 64 frames": _frames(lambda frame: frame % 64),
    "repeats its noise every 256 frames": _frames(lambda frame: frame % 256),
    "repeats its noise every 1000 frames": _frames(lambda frame: frame % 1000),
    "repeats its noise every 1024 frames": _frames(lambda frame: frame % 1024),
    "repeats its noise every 4096 frames": _frames(lambda frame: frame % 4096),
    "has no new noise after 512 frames": _frames(lambda frame: min(frame, 512)),
    "has the same noise in each codebook": _noise(lambda choice: (choice.params.seed, 0, choice.frame)),
    "has the noise of the codebook before": _noise(
        lambda choice: (choice.params.seed, choice.codebook - 1, choice.frame)
    ),
    "repeats its noise after 8 codebooks": _noise(
        lambda choice: (choice.params.seed, choice.codebook % 8, choice.frame)
    ),
    "has the noise of another id": _nearby_noise(1),
    "has the noise of another four ids": _nearby_noise(4),
}
"""Wrong rules that a sampler may follow. Tests use each one only where it leads to another code than the contract's."""
