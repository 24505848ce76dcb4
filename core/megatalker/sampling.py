"""The sampling contract: the same logits and the same seed give the same code on every backend."""

import math
from dataclasses import dataclass

from megatalker.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How codes are chosen from logits. Defaults are those of the official package.

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
        for name in ("temperature", "predictor_temperature", "repetition_penalty"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                hint = "; for greedy decoding set do_sample=False" if "temperature" in name else ""
                raise InvalidRequestError(f"{name} is {value!r}, expected a finite number above 0{hint}")
        for name in ("top_p", "predictor_top_p"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value <= 1):
                raise InvalidRequestError(f"{name} is {value!r}, expected a number in (0, 1]; 1 keeps all ids")
        for name in ("top_k", "predictor_top_k"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
                raise InvalidRequestError(f"{name} is {value!r}, expected an integer of at least 1, or None to keep all ids")
        for name, limit in (("min_new_tokens", 2**31), ("seed", 2**64)):
            value = getattr(self, name)
            if not (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit):
                raise InvalidRequestError(f"{name} is {value!r}, expected an integer of at least 0 and below {limit}")
