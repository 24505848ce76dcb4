"""The sampling contract: the same logits and the same seed give the same code on every backend.

Rules, in this order, on float32 logits; quotients are correctly rounded float32, parameters are rounded to float32:

1. Code 0 only: each id in the stream's code-0 history is penalised once, ``logit * p`` if negative, else ``logit / p``.
2. Code 0 only: end-of-speech is barred while the frame index is below ``min_new_tokens``; ids from
   ``first_suppressed_id`` on, end-of-speech excepted, are barred always.
3. Greedy (``do_sample=False``) stops here: the largest logit, the lowest id among equals. Otherwise
   ``z = logit / temperature``.
4. top-k: ids with ``z`` below the k-th largest are dropped (equals stay).
5. top-p: the weight of an id is ``exp(-(z_max - z))`` in units of 2**-40, from
   :func:`megatalker.sampling.piecewise.decay_table`; the distance is taken in float32, clamped to 31.5, cut to 2**-20.
   The threshold is the smallest ``z`` left whose ascending cumulative weight, an exact integer, exceeds
   ``float64(1 - top_p) * total``; smaller ``z`` are dropped. ``top_p=1`` drops nothing.
6. The choice is the largest ``z + g`` in float32 among the ids left, the lowest id among equals. ``g = -ln(-ln u)``
   comes from :func:`megatalker.sampling.piecewise.gumbel_table`, rounded to float32, with
   ``u = ((word >> 8) + 1/2) / 2**24``. ``word`` is output word ``id % 4`` of Philox4x32-10 with the counter
   ``(id // 4, codebook, frame, 0)`` and the key ``(seed % 2**32, seed // 2**32)``: any thread can compute any element.

:mod:`megatalker.sampling.numpy_sampler` is the same in plain numpy, bit for bit. Logits that are not numbers give an
unspecified id of the vocabulary.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from megatalker.errors import InvalidRequestError
from megatalker.sampling.philox import WORD, philox4x32, round_keys, signed_multipliers
from megatalker.sampling.piecewise import (
    DECAY_POSITION_BITS,
    GUMBEL_FRACTION_BITS,
    GUMBEL_POSITION_BITS,
    decay_table,
    evaluate,
    gumbel_table,
)

if TYPE_CHECKING:  # a checkpoint holds sampling parameters, not the other way round
    from megatalker.checkpoint.config import ModelConfig

__all__ = ["CodeVocabulary", "SamplerRows", "SamplingParams"]

MAX_DECAY = 31.5
"""Ids this far below the best one have weight 0."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of choosing codes from logits. Defaults are those of the official package.

    ``predictor_*`` apply to codes 1-15 (officially ``subtalker_*``), the others to code 0.

    Raises:
        InvalidRequestError: a value outside its range; the message names the field, the value and the range.
    """

    do_sample: bool = True
    """``False`` takes the most likely id (greedy), lowest id on ties."""
    temperature: float = 0.9
    top_k: int | None = 50
    """Keep the k most likely ids (and ids equal to the k-th); ``None`` keeps all."""
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    """Over the code-0 history of the stream; code 0 only, once per distinct id."""
    min_new_tokens: int = 2
    """End-of-speech is suppressed for this many frames."""
    predictor_do_sample: bool = True
    predictor_temperature: float = 0.9
    predictor_top_k: int | None = 50
    predictor_top_p: float = 1.0
    seed: int = 0
    """0 <= seed < 2**64: the key of the Philox noise."""

    def __post_init__(self) -> None:
        for name in ("do_sample", "predictor_do_sample"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name} is {getattr(self, name)!r}, expected True or False")
        for name in ("temperature", "predictor_temperature", "repetition_penalty"):
            value = getattr(self, name)
            if not (_is_number(value) and 1e-6 <= value <= 1e6):
                hint = "; for greedy decoding set do_sample=False" if "temperature" in name else ""
                raise InvalidRequestError(f"{name} is {value!r}, expected a number from 1e-6 to 1e6{hint}")
        for name in ("top_p", "predictor_top_p"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 < value <= 1):
                raise InvalidRequestError(f"{name} is {value!r}, expected a number in (0, 1]; 1 keeps all ids")
        for name in ("top_k", "predictor_top_k"):
            value = getattr(self, name)
            if value is not None and not (_is_integer(value) and 1 <= value < 2**31):
                expected = f"an integer of at least 1 and below {2**31}, or None to keep all ids"
                raise InvalidRequestError(f"{name} is {value!r}, expected {expected}")
        for name, limit in (("min_new_tokens", 2**31), ("seed", 2**64)):
            value = getattr(self, name)
            if not (_is_integer(value) and 0 <= value < limit):
                raise InvalidRequestError(f"{name} is {value!r}, expected an integer of at least 0 and below {limit}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class CodeVocabulary:
    """The ids that code 0 is chosen from."""

    size: int
    eos_id: int
    first_suppressed_id: int
    """Ids from here on are never chosen, ``eos_id`` excepted."""

    @classmethod
    def from_config(cls, config: "ModelConfig") -> "CodeVocabulary":
        """Return the talker's vocabulary of a checkpoint."""
        return cls(config.talker.vocab_size, config.codec_eos_id, config.first_suppressed_id)

    @classmethod
    def of(cls, config: "ModelConfig") -> "CodeVocabulary":
        """Former name of :meth:`from_config`; it goes with the next version."""
        warnings.warn("CodeVocabulary.of is CodeVocabulary.from_config now", DeprecationWarning, stacklevel=2)
        return cls.from_config(config)


class _Filters:
    """Temperature, top-k, top-p and the kind of choice of every row, for one stage (talker or predictor)."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._reals = torch.ones(rows, 2, dtype=torch.float64, device=device)
        self._integers = torch.ones(rows, 2, dtype=torch.int64, device=device)

    def assign(self, row: int, do_sample: bool, temperature: float, top_k: int | None, top_p: float) -> None:
        dropped = 1.0 - top_p if top_p < 1 else -1.0
        self._reals[row] = torch.tensor([_single(temperature), dropped], dtype=torch.float64)
        self._integers[row] = torch.tensor([do_sample, 2**31 if top_k is None else top_k])

    def choose(self, rows: Tensor, logits: Tensor, noise: Tensor, decay_rows: Tensor, ids: Tensor) -> Tensor:
        temperature, dropped = self._reals.index_select(0, rows).unsqueeze(-1).unbind(1)
        do_sample, top_k = self._integers.index_select(0, rows).unsqueeze(-1).unbind(1)
        scaled = _divide(logits, temperature)
        kept = scaled >= _threshold(scaled, top_k, dropped, decay_rows)
        sampled = torch.where(kept, scaled + noise, -torch.inf)
        return _lowest_argmax(torch.where(do_sample != 0, sampled, logits), ids)


class SamplerRows:
    """Sampling state of N streams on one device: parameters, seen ids, frame counters. One row belongs to one stream.

    On ``mps``, which has no float64, all is computed on the CPU: logits come over, codes go back.

    All methods except :meth:`assign` may be compiled and captured: they are tensor operations of static shape then.
    ``rows`` is always an int64 ``[B]`` tensor of distinct row numbers; results depend on a row's own data only.
    """

    def __init__(self, rows: int, vocabulary: CodeVocabulary, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device, device = device, torch.device("cpu") if device.type == "mps" else device
        self._talker = _Filters(rows, device)
        self._predictor = _Filters(rows, device)
        self._penalty = torch.ones(rows, 1, dtype=torch.float64, device=device)
        self._min_frames = torch.zeros(rows, dtype=torch.int64, device=device)
        self._frame = torch.zeros(rows, dtype=torch.int64, device=device)
        self._keys = torch.zeros(rows, 10, 2, dtype=torch.int64, device=device)
        self._seen = torch.zeros(rows, vocabulary.size, dtype=torch.bool, device=device)
        self._yes = torch.ones((), dtype=torch.bool, device=device)
        self._ids = torch.arange(vocabulary.size, device=device)
        self._is_eos = self._ids == vocabulary.eos_id
        self._suppressed = (self._ids >= vocabulary.first_suppressed_id) & ~self._is_eos
        self._multipliers = signed_multipliers(device).view(2, 1, 1, 1)
        self._gumbel_rows = torch.tensor(gumbel_table(), device=device)
        self._decay_rows = torch.tensor(decay_table(), device=device)

    def assign(self, row: int, params: SamplingParams, history: Sequence[int] = ()) -> None:
        """Give the row to a stream whose next frame has index ``len(history)``. Host side, never inside a graph.

        Args:
            row: 0 <= row < rows.
            params: the stream's parameters.
            history: code 0 of each frame already emitted.

        Raises:
            InvalidRequestError: a history id outside the vocabulary.
        """
        strangers = [code for code in history if not 0 <= code < self._vocabulary.size]
        if strangers:
            raise InvalidRequestError(
                f"the history holds code {strangers[0]}, expected codes from 0 to {self._vocabulary.size - 1}; "
                "pass code 0 of each emitted frame"
            )
        self._talker.assign(row, params.do_sample, params.temperature, params.top_k, params.top_p)
        self._predictor.assign(
            row,
            params.predictor_do_sample,
            params.predictor_temperature,
            params.predictor_top_k,
            params.predictor_top_p,
        )
        self._penalty[row] = _single(params.repetition_penalty)
        self._min_frames[row] = params.min_new_tokens
        self._frame[row] = len(history)
        self._keys[row] = torch.tensor(round_keys((params.seed & WORD, params.seed >> 32)))
        self._seen[row] = False
        if history:
            self._seen[row, torch.tensor(sorted(set(history)), device=self._seen.device)] = True

    def choose_first(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Code 0 of the rows' current frame: int64 ``[B]`` from logits ``[B, vocabulary.size]`` of any float type."""
        rows, logits = self._here(rows), self._here(logits).float()
        penalty = self._penalty.index_select(0, rows)
        penalised = torch.where(logits < 0, logits * penalty.float(), _divide(logits, penalty))
        logits = torch.where(self._seen.index_select(0, rows), penalised, logits)
        early = (self._frame < self._min_frames).index_select(0, rows).unsqueeze(1)
        logits = torch.where(self._suppressed | (self._is_eos & early), -torch.inf, logits)
        noise = self._noise(rows, 0, 1, logits.shape[1])[:, 0]
        return self._talker.choose(rows, logits, noise, self._decay_rows, self._ids).to(self._device)

    def rest_noise(self, rows: Tensor, codebooks: int, size: int) -> Tensor:
        """The noise of codes 1 to ``codebooks`` of the current frame, float32 ``[B, codebooks, size]``, in one go."""
        return self._noise(self._here(rows), 1, codebooks, size)

    def choose_rest(self, rows: Tensor, logits: Tensor, codebook: int, noise: Tensor | None = None) -> Tensor:
        """Code ``codebook`` (1 to 15) of the current frame.

        Args:
            rows: the streams.
            logits: ``[B, V]`` of any float type; V may differ from code 0's vocabulary.
            codebook: which code.
            noise: ``[B, V]``, this codebook's part of :meth:`rest_noise`; computed here if not given.

        Returns:
            int64 ``[B]``.
        """
        rows, logits = self._here(rows), self._here(logits).float()
        if noise is None:
            noise = self._noise(rows, codebook, 1, logits.shape[1])[:, 0]
        ids = torch.arange(logits.shape[1], device=logits.device)
        return self._predictor.choose(rows, logits, noise, self._decay_rows, ids).to(self._device)

    def advance(self, rows: Tensor, first_codes: Tensor) -> None:
        """Finish the frame: remember its code 0 (int64 ``[B]``) for the penalty and go to the next frame."""
        rows, first_codes = self._here(rows), self._here(first_codes)
        self._seen.index_put_((rows, first_codes), self._yes)
        self._frame[rows] += 1

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._ids.device)

    def _noise(self, rows: Tensor, first_codebook: int, codebooks: int, size: int) -> Tensor:
        """Gumbel noise of the rows' current frame, float32 ``[B, codebooks, size]``."""
        shape = (rows.shape[0], codebooks, (size + 3) // 4)
        blocks = torch.arange(shape[2], device=rows.device).expand(shape)
        codebook = torch.arange(first_codebook, first_codebook + codebooks, device=rows.device).view(1, -1, 1)
        even = torch.stack((blocks, self._frame.index_select(0, rows).view(-1, 1, 1).expand(shape)))
        odd = torch.stack((codebook.expand(shape), torch.zeros_like(blocks)))
        keys = self._keys.index_select(0, rows).permute(1, 2, 0)[..., None, None]
        even, odd = philox4x32(even, odd, keys, self._multipliers)
        words = torch.stack((even[0], odd[0], even[1], odd[1]), dim=-1).flatten(2)
        return self._gumbel(words[..., :size])

    def _gumbel(self, words: Tensor) -> Tensor:
        numerator = (words >> 8) * 2 + 1
        upper = numerator > 2**24
        bits = torch.where(upper, 2**25 - numerator, numerator).float().view(torch.int32).long()
        row = (bits >> GUMBEL_POSITION_BITS) - 127 * 16 + upper * 384
        position = bits & (2**GUMBEL_POSITION_BITS - 1)
        value: Tensor = evaluate(F.embedding(row, self._gumbel_rows), position, GUMBEL_POSITION_BITS)
        return value.float() * 2.0**-GUMBEL_FRACTION_BITS


def _single(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The correctly rounded float32 quotient, by way of float64: GPU compilers approximate float32 division."""
    return (numerator.double() / denominator).float()


def _threshold(scaled: Tensor, top_k: Tensor, dropped: Tensor, decay_rows: Tensor) -> Tensor:
    """The smallest value that top-k and top-p keep: float32 ``[B, 1]``."""
    top_k = top_k.clamp(max=scaled.shape[1])
    valued = type(dropped) is Tensor  # fake tensors, with which shapes are traced, have no values
    static = not valued or scaled.device.type != "cpu" or torch.compiler.is_compiling()
    if not static and bool((dropped < 0).all()):  # no row has a top-p, which is most of the work
        return scaled.topk(int(top_k.max())).values.gather(1, top_k - 1)
    falling = scaled.sort(dim=-1, descending=True).values
    kth = falling.gather(1, top_k - 1)
    weights = torch.where(falling >= kth, _weights(falling[:, :1] - falling, decay_rows), 0)
    below = weights.sum(-1, keepdim=True) - weights.cumsum(-1) + weights
    total = below[:, :1]
    heavy = below.double() > dropped * total
    return torch.maximum(kth, torch.where(heavy, falling, torch.inf).amin(-1, keepdim=True))


def _weights(distance: Tensor, decay_rows: Tensor) -> Tensor:
    """``exp(-distance)`` as int64 in units of 2**-40."""
    steps = (distance.clamp(max=MAX_DECAY) * 2.0**20).long().clamp(min=0)  # clamped again: NaN must stay a legal index
    coefficients = F.embedding(steps >> DECAY_POSITION_BITS, decay_rows)
    weights: Tensor = evaluate(coefficients, steps & (2**DECAY_POSITION_BITS - 1), DECAY_POSITION_BITS)
    return weights


def _lowest_argmax(scores: Tensor, ids: Tensor) -> Tensor:
    """Index of the largest score, the lowest one on ties; ``torch.argmax`` does not promise which."""
    best = scores.amax(-1, keepdim=True)
    return torch.where(scores == best, ids, ids[-1]).amin(-1)
