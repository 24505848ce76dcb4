"""Qwen3-ForcedAligner: eleven languages, a model of 0.6B parameters from Hugging Face.

Its package asks for another version of transformers than ``qwen-tts``; install it where that does not disturb.
"""

from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import Any

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import MalformedResultError, UnsupportedError, describe_error
from megatalker.plugins.aligner import Aligner, AlignerPlugin, SpokenSegment

MODEL = "Qwen/Qwen3-ForcedAligner-0.6B"
UNTOLD_LANGUAGE = "English"
"""The model must be told a language; this one where the request names none."""


class QwenAligner(Aligner):
    """The loaded model, a ``Qwen3ForcedAligner``."""

    def __init__(self, model: Any) -> None:
        self._model, self._lock = model, Lock()  # its tokenizer is not made for several threads

    def align(self, segment: SpokenSegment) -> list[tuple[float, float]]:
        """Ask the model, and give each word the times of its letters.

        Raises:
            MalformedResultError: the model leaves out letters of the text.
        """
        language = (segment.language or UNTOLD_LANGUAGE).capitalize()
        with self._lock:
            (found,) = self._model.align(audio=(segment.samples, SAMPLE_RATE), text=segment.text, language=language)
        return by_letters(segment.words, [(one.text, one.start_time, one.end_time) for one in found])


def by_letters(words: Sequence[str], units: Sequence[tuple[str, float, float]]) -> list[tuple[float, float]]:
    """Return the times of words from those of other units of the same text: a letter has the times of its unit.

    Args:
        words: of the text.
        units: text, begin and end in seconds.

    Raises:
        MalformedResultError: their letters and digits are not as many.
    """
    times = [(begin, end) for text, begin, end in units for letter in text if letter.isalnum()]
    counts = [sum(map(str.isalnum, word)) for word in words]
    if len(times) != sum(counts):
        raise MalformedResultError(f"{len(times)} letters have times, expected {sum(counts)}")
    ends = accumulate(counts)
    return [(times[end - count][0], times[end - 1][1]) for end, count in zip(ends, counts, strict=True)]


def load() -> QwenAligner:
    """Load the model from Hugging Face or its cache, onto the GPU where there is one.

    Raises:
        UnsupportedError: the package is missing, or the model cannot be had.
    """
    try:
        import torch
        from qwen_asr import Qwen3ForcedAligner
    except ImportError as error:
        raise UnsupportedError(
            f"the aligner 'qwen' needs the package {error.name}; install it: pip install --no-deps qwen-asr"
        ) from error
    place, dtype = ("cuda:0", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    try:
        return QwenAligner(Qwen3ForcedAligner.from_pretrained(MODEL, dtype=dtype, device_map=place))
    except Exception as error:  # of the hub, the network, the files or the device
        raise UnsupportedError(f"{MODEL} cannot be loaded: {describe_error(error)}") from error


QWEN = AlignerPlugin("qwen", "Qwen3-ForcedAligner: eleven languages, a model of 0.6B parameters", load)
