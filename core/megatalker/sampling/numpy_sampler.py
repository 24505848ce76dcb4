"""The executable specification of :mod:`megatalker.sampling`: one choice of one stream, in plain numpy.

Written for reading and for checking backends, not for speed.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from megatalker.errors import InvalidRequestError
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.sampling.philox import MULTIPLIERS, WORD, round_keys
from megatalker.sampling.piecewise import decay_table, evaluate, gumbel_table

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


def choose(
    logits: Floats,
    params: SamplingParams,
    *,
    codebook: int,
    frame: int,
    history: Sequence[int],
    vocabulary: CodeVocabulary,
) -> int:
    """The code that every backend must choose from these logits (float32 ``[V]``).

    Args:
        logits: raw logits; for ``codebook`` 0 as many as the vocabulary.
        params: the stream's parameters.
        codebook: 0 for the talker's code, 1 to 15 for the predictor's.
        frame: index of the frame in its stream.
        history: code 0 of the frames before; ignored for other codebooks.
        vocabulary: the ids of code 0; ignored for other codebooks.

    Raises:
        InvalidRequestError: the logits are not ``[V]`` of the vocabulary.
    """
    if logits.ndim != 1 or (codebook == 0 and logits.size != vocabulary.size):
        raise InvalidRequestError(f"logits have shape {logits.shape}, expected ({vocabulary.size},)")
    logits = logits.astype(np.float32)
    if codebook == 0:
        logits = first_code_rules(logits, params, frame, history, vocabulary)
        do_sample, temperature, top_k, top_p = params.do_sample, params.temperature, params.top_k, params.top_p
    else:
        do_sample, temperature = params.predictor_do_sample, params.predictor_temperature
        top_k, top_p = params.predictor_top_k, params.predictor_top_p
    if not do_sample:
        return int(np.argmax(logits))
    scaled = logits / np.float32(temperature)
    kept = keep_top_p(scaled, keep_top_k(scaled, top_k), top_p)
    scores = np.where(kept, scaled + gumbel_noise(params.seed, codebook, frame, logits.size), -np.inf)
    return int(np.argmax(scores))


@lru_cache(maxsize=256)
def gumbel_noise(seed: int, codebook: int, frame: int, size: int) -> Floats:
    """The noise of every id: float32 ``[size]``, read-only."""
    blocks = np.arange(-(-size // 4), dtype=np.uint64)
    counter = np.zeros((4, blocks.size), np.uint64)
    counter[0], counter[1], counter[2] = blocks, codebook, frame
    words = philox4x32(counter, (seed & WORD, seed >> 32)).T.reshape(-1)[:size]
    numerator = (words >> np.uint64(8)).astype(np.int64) * 2 + 1
    upper = numerator > 2**24
    bits = np.where(upper, 2**25 - numerator, numerator).astype(np.float32).view(np.int32).astype(np.int64)
    rows = _rows(gumbel_table)[(bits >> 19) - 127 * 16 + 384 * upper]
    value = evaluate(rows, bits & (2**19 - 1), position_bits=19)
    noise: Floats = value.astype(np.float32) * np.float32(2.0**-26)
    noise.flags.writeable = False
    return noise


@cache
def _rows(table: Callable[[], Sequence[Sequence[int]]]) -> Integers:
    return np.array(table())


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10 of counters ``[4, n]`` (32-bit words in uint64), giving ``[4, n]``."""
    word, shift = np.uint64(WORD), np.uint64(32)
    c0, c1, c2, c3 = counter
    for k0, k1 in round_keys(key):
        left, right = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c2 = (right >> shift) ^ c1 ^ np.uint64(k0), (left >> shift) ^ c3 ^ np.uint64(k1)
        c1, c3 = right & word, left & word
    return np.stack((c0, c1, c2, c3))


def first_code_rules(
    logits: Floats, params: SamplingParams, frame: int, history: Sequence[int], vocabulary: CodeVocabulary
) -> Floats:
    """Rules 1 and 2: repetition penalty, and the ids that are barred from code 0."""
    logits = logits.copy()
    penalty = np.float32(params.repetition_penalty)
    seen = sorted(set(history))
    logits[seen] = np.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
    end = logits[vocabulary.eos_id]
    logits[vocabulary.first_suppressed_id :] = -np.inf
    logits[vocabulary.eos_id] = -np.inf if frame < params.min_new_tokens else end
    return logits


def keep_top_k(scaled: Floats, top_k: int | None) -> NDArray[np.bool_]:
    """Rule 4: which ids stay."""
    kth = np.sort(scaled)[-min(top_k or scaled.size, scaled.size)]
    return np.asarray(scaled >= kth)


def keep_top_p(scaled: Floats, kept: NDArray[np.bool_], top_p: float) -> NDArray[np.bool_]:
    """Rule 5: which of the ids that rule 4 ``kept`` stay."""
    if top_p == 1:
        return kept
    rising = np.sort(scaled[kept])
    steps = (np.minimum(rising[-1] - rising, np.float32(31.5)) * np.float32(2**20)).astype(np.int64)
    weights = evaluate(_rows(decay_table)[steps >> 17], steps & (2**17 - 1), position_bits=17)
    cumulative = np.cumsum(weights)
    first = np.argmax(cumulative.astype(np.float64) > (1.0 - top_p) * np.float64(cumulative[-1]))
    return np.asarray(scaled >= rising[first])
