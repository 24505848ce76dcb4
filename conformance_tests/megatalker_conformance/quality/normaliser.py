"""Texts as the benchmark seed-tts-eval compares them: without punctuation, in words, or in characters."""

import string
import warnings

from megatalker.errors import UnsupportedError
from megatalker_conformance.recogniser import word_errors

INSTALL = "pip install 'megatalker[quality]'"
IN_CHARACTERS = ("chinese", "japanese", "korean")
"""Languages whose error rate counts characters; the benchmark itself has English and Chinese."""


class BenchmarkNormaliser:
    """Rules of one language.

    Args:
        language: as checkpoints name it, in lower case.

    Raises:
        UnsupportedError: the extra ``quality`` is not installed.
    """

    def __init__(self, language: str) -> None:
        try:
            from zhconv import convert
            from zhon.hanzi import punctuation
        except ImportError as error:
            raise UnsupportedError(f"error rates need {error.name}, which is not installed; {INSTALL}") from error
        self._removed = str.maketrans("", "", (punctuation + string.punctuation).replace("'", ""))
        self._characters = language in IN_CHARACTERS
        self._simplify = convert if language == "chinese" else None
        if self._simplify is not None:
            with warnings.catch_warnings():  # it leaves the file of its dictionary open, once
                warnings.simplefilter("ignore", ResourceWarning)
                convert("", "zh-cn")

    def __call__(self, text: str) -> list[str]:
        """The units that errors are counted in."""
        if self._simplify is not None:
            text = self._simplify(text, "zh-cn")
        text = text.translate(self._removed)
        return list("".join(text.split())) if self._characters else text.lower().split()

    def error_rate(self, said: str, heard: str) -> float:
        """Substitutions, insertions and deletions for each unit of ``said``, which holds one at least."""
        units = self(said)
        return word_errors(units, self(heard)) / len(units)
