"""Pocketsphinx as an aligner of English: small acoustic models that come with the package, some 10 ms exact.

Words that its dictionary lacks are said by the letters; digits and signs are written out in words first, where the
extra ``text`` is installed.
"""

import re
import threading
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import MegatalkerError, UnsupportedError
from megatalker.plugins.aligner import Aligner, AlignerPlugin, SpokenSegment
from megatalker.plugins.recogniser_input import MARGIN, RATE, as_recorded
from megatalker.prompt.rewriting.normalisation import Normaliser

FRAMES_A_SECOND = 100
SEARCH = {"ds": 2, "bestpath": False, "beam": 1e-64, "pbeam": 1e-64, "wbeam": 1e-56}
"""Every other frame is weighed: a third less time, and half of the words are off by 1 ms more. Wider beams than usual:
words that the voice says badly are found, too."""
MOST_ADDED_WORDS = 2000
"""A decoder that has learned this many words begins anew: its memory does not grow without end."""
LETTERS = {
    "a": "AE", "b": "B", "c": "K", "d": "D", "e": "EH", "f": "F", "g": "G", "h": "HH", "i": "IH", "j": "JH", "k": "K",
    "l": "L", "m": "M", "n": "N", "o": "AA", "p": "P", "q": "K", "r": "R", "s": "S", "t": "T", "u": "AH", "v": "V",
    "w": "W", "x": "K S", "y": "IY", "z": "Z",
    "ch": "CH", "ck": "K", "ee": "IY", "ea": "IY", "ng": "NG", "oo": "UW", "ou": "AW", "ph": "F", "qu": "K W",
    "sh": "SH", "th": "TH", "ai": "EY", "ay": "EY", "oa": "OW", "ow": "OW", "er": "ER", "ar": "AA R", "or": "AO R",
}  # fmt: skip
"""Phones of letters, for words that no dictionary has."""
_SOUNDS = re.compile("|".join(sorted(LETTERS, key=len, reverse=True)))
_PARTS = re.compile(r"[a-z]+(?:'[a-z]+)*")


class SphinxAligner(Aligner):
    """Each thread has a decoder of its own."""

    def __init__(self, decoder: type[Any], model: Path) -> None:
        self._new_decoder, self._model = decoder, model
        self._own = threading.local()
        try:
            self._normaliser: Normaliser | None = Normaliser("english")
            self._normaliser.grouper()  # the first call imports what it needs
        except UnsupportedError:
            self._normaliser = None
        self._decoder()

    def align(self, segment: SpokenSegment) -> list[tuple[float, float]]:
        """Find the words of an English segment. A word that has nothing to say has no length.

        Raises:
            UnsupportedError: the language is not English.
            ValueError: the words cannot be found in the audio.
        """
        if segment.language not in (None, "english"):
            raise UnsupportedError(f"pocketsphinx aligns English, and this is {segment.language}")
        parts = [_PARTS.findall(_ascii(self._written_out(word))) for word in segment.words]
        said = [part for word in parts for part in word]
        found = self._find(said, segment) if said else []
        times, at, before = [], 0, 0.0
        for word in parts:
            inside = found[at : at + len(word)]
            at += len(word)
            begin, before = (inside[0][0], inside[-1][1]) if inside else (before, before)
            times.append((begin, before))
        return times

    def _find(self, said: Sequence[str], segment: SpokenSegment) -> list[tuple[float, float]]:
        decoder = self._decoder()
        for part in set(said):
            if decoder.lookup_word(part) is None:
                decoder.add_word(part, " ".join(LETTERS[sound] for sound in _SOUNDS.findall(part)), True)
                self._own.added += 1
        decoder.set_align_text(" ".join(said))
        decoder.reinit_feat()  # or it would go on with the means and the noise of the speech before
        decoder.start_utt()
        decoder.process_raw(as_recorded(segment.samples).tobytes(), full_utt=True)
        decoder.end_utt()
        words = [(one.start_frame, one.end_frame + 1) for one in decoder.seg() or () if one.word[0] not in "<["]
        if len(words) != len(said):
            raise ValueError(f"pocketsphinx found {len(words)} of {len(said)} words")
        seconds = len(segment.samples) / SAMPLE_RATE
        times = np.asarray(words) / FRAMES_A_SECOND - MARGIN / RATE
        return [(float(begin), float(end)) for begin, end in times.clip(0.0, seconds)]

    def _decoder(self) -> Any:
        own = self._own
        if getattr(own, "decoder", None) is None or own.added > MOST_ADDED_WORDS:
            sounds, words = str(self._model / "en-us"), str(self._model / "cmudict-en-us.dict")
            own.decoder = self._new_decoder(hmm=sounds, dict=words, lm=None, samprate=RATE, loglevel="FATAL", **SEARCH)
            own.added = 0
        return own.decoder

    def _written_out(self, word: str) -> str:
        if self._normaliser is None or word.isalpha():
            return word
        try:
            return self._normaliser.write(word)
        except MegatalkerError:
            return word


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text.replace("\u2019", "'")).encode("ascii", "ignore").decode().lower()


def load() -> SphinxAligner:
    """Load the models that come with the package.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        from pocketsphinx import Decoder, get_model_path
    except ImportError as error:
        raise UnsupportedError(
            "the aligner 'pocketsphinx' needs the package pocketsphinx; install the extra: "
            "pip install 'megatalker[aligner]'"
        ) from error
    return SphinxAligner(Decoder, Path(get_model_path()) / "en-us")


POCKETSPHINX = AlignerPlugin("pocketsphinx", "Pocketsphinx: English, on the processor, needs no download", load)
