"""Hears words of a small, closed vocabulary: pocketsphinx, an independent program, with the model it comes with."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from megatalker.plugins.recogniser_input import RATE, as_recorded


class Recogniser:
    """Decides which of ``words`` were said, in which order; every order is equally likely to it.

    Raises:
        ValueError: pocketsphinx's dictionary lacks one of the words.
    """

    def __init__(self, words: Sequence[str]) -> None:
        from pocketsphinx import Decoder, get_model_path  # type: ignore[import-not-found, import-untyped, unused-ignore]

        model = Path(get_model_path()) / "en-us"
        self._folder = tempfile.TemporaryDirectory(prefix="megatalker-recogniser-")
        folder = Path(self._folder.name)
        vocabulary = sorted({word.lower() for word in words})
        (folder / "words.dict").write_text(_pronunciations(model / "cmudict-en-us.dict", vocabulary), encoding="utf-8")
        (folder / "words.arpa").write_text(_unigrams(vocabulary), encoding="utf-8")
        self._decoder: Any = Decoder(
            hmm=str(model / "en-us"),
            dict=str(folder / "words.dict"),
            lm=str(folder / "words.arpa"),
            samprate=RATE,
            loglevel="FATAL",
        )

    def hear(self, pcm: npt.NDArray[np.float32]) -> list[str]:
        """Return the words in ``[samples]`` float32 at 24 kHz, whatever was heard before."""
        self._decoder.reinit_feat()  # or it would go on with the means and the noise of the speech before
        self._decoder.start_utt()
        self._decoder.process_raw(as_recorded(pcm).tobytes(), full_utt=True)
        self._decoder.end_utt()
        guess = self._decoder.hyp()
        return [] if guess is None else str(guess.hypstr).split()

    def close(self) -> None:
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Substitutions, insertions and deletions between two word lists: the smallest number that explains them."""
    row = list(range(len(heard) + 1))
    for index, word in enumerate(said, start=1):
        diagonal, row[0] = row[0], index
        for column, other in enumerate(heard, start=1):
            best = min(diagonal + (word != other), row[column] + 1, row[column - 1] + 1)
            diagonal, row[column] = row[column], best
    return row[-1]


def _pronunciations(dictionary: Path, words: Sequence[str]) -> str:
    """The lines of ``dictionary`` for these words; further pronunciations of a word are called ``word(2)`` there."""
    wanted, found, lines = set(words), set(), []
    for line in dictionary.read_text(encoding="utf-8").splitlines():
        name = line.partition(" ")[0].partition("(")[0]
        if name in wanted:
            found.add(name)
            lines.append(line)
    if missing := sorted(wanted - found):
        raise ValueError(f"the recogniser does not know {', '.join(missing)}; use other words")
    return "\n".join(lines) + "\n"


def _unigrams(words: Sequence[str]) -> str:
    """A language model in the ARPA format to which all words are equally likely."""
    share = -float(np.log10(len(words) + 1))
    rows = "\n".join(f"{share:.4f} {word}" for word in ("</s>", *words))
    return f"\\data\\\nngram 1={len(words) + 2}\n\n\\1-grams:\n-99 <s>\n{rows}\n\n\\end\\\n"
