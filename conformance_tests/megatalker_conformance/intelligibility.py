"""Test of whether speech can be understood: the sentences, and the score that a recogniser gives them."""

import pkgutil
import random
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine import Engine
from megatalker.errors import InvalidRequestError
from megatalker.voices import Voice
from megatalker_conformance.recogniser import Recogniser, word_errors

Pcm = npt.NDArray[np.float32]
Say = Callable[[str], Pcm]

DIGIT_ERRORS, WORD_ERRORS, SENTENCES_TOLD = 0.05, 0.15, 0.9
"""The bar for the demo voice."""
CONTROL_ERRORS, CONTROL_TOLD = 0.6, 0.4
"""Disordered sound must score worse than these: its share of word errors, and of sentences told apart."""
CONTROLS = 3
"""One text in three is also heard in disorder."""
LONGEST = 200
"""Frames of one text, about four times of what it takes."""

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_STRINGS = (
    "2 7 8 9 9", "4 4 2 7 6", "9 3 4 3 4", "9 5 3 7 8", "6 5 7 3 8", "4 1 4 6 3", "9 1 4 8 8", "4 8 2 2 5", "4 2 0 2 6",
    "6 7 9 3 6", "0 6 7 9 6", "7 2 2 2 2", "4 0 5 2 6", "6 0 8 3 2", "7 3 1 1 5", "7 8 6 1 3", "3 5 0 1 5", "2 5 3 3 1",
    "6 8 7 8 6", "3 3 2 7 7",
)  # fmt: skip
WORDS = (
    "airport", "banana", "battery", "butter", "camera", "chicken", "coffee", "computer", "doctor", "dolphin", "down",
    "elephant", "evening", "friday", "garden", "go", "hello", "hospital", "hundred", "kitchen", "left", "monday",
    "morning", "mountain", "music", "no", "orange", "pause", "pencil", "please", "potato", "purple", "right", "river",
    "start", "stop", "table", "teacher", "telephone", "thank", "thousand", "tiger", "umbrella", "up", "volume", "water",
    "weather", "window", "yellow", "yes",
)  # fmt: skip
WORD_ROWS = (
    "yes airport purple no hello",
    "orange please start mountain evening",
    "purple down kitchen pause right",
    "kitchen start butter up coffee",
    "down potato yes thank monday",
    "telephone thank start camera purple",
    "teacher airport pause music mountain",
    "elephant pause left airport morning",
    "right music stop monday window",
    "hello teacher butter water garden",
    "down potato friday purple tiger",
    "thank hundred stop purple please",
    "elephant volume go hello tiger",
    "battery pencil thank computer down",
    "stop morning elephant yellow water",
    "hello water butter right doctor",
    "kitchen hundred right computer doctor",
    "doctor yellow telephone mountain down",
    "computer evening monday banana battery",
    "butter friday hundred coffee hospital",
)
SENTENCES = (
    "He began on purpose, and she grew later.",
    "Why did the engineer wait?",
    "I saw a turkey in the country every morning.",
    "Ask Daniel about the folder.",
    "Oscar and Sara cleaned a toy in Miami.",
    "She bought spaghetti, sugar and milk.",
    "He wandered outside, and she whispered inside.",
    "Bills and bridges, kangaroos and authors.",
    "Can you buy the plate at night, please?",
    "It is about Mexico and socks.",
    "How innocent is the question?",
    "Everything in the laboratory is bold.",
    "There is a deep giraffe near the tile.",
    "Please fetch a bone and a sweater.",
    "When does the zoo close?",
    "Where did you send the screen?",
    "Although the otter was sticky, it rose at night.",
    "I would like mineral water and honey, please.",
    "Parrots wake, and puppies walk.",
    "Somebody guessed my bicycle in the library.",
)


@dataclass(frozen=True, slots=True)
class Understood:
    """Results of a recogniser for speech, and for the same speech with its frames in disorder."""

    share: float
    """Word errors per word said (may exceed 1), or sentences told apart per sentence."""
    control: float
    """The same of the disordered sound: a judge that is satisfied with it hears what it expects."""


class WordListener(Protocol):
    """Decides which words were said."""

    def hear(self, pcm: Pcm) -> list[str]:
        """The words in ``[samples]`` float32 at 24 kHz, in lower case."""


MakeListener = Callable[[Sequence[str]], AbstractContextManager[WordListener]]
"""Makes one that need not tell any words apart but these; :class:`Recogniser` is one."""


class Examiner:
    """Listens to one voice.

    Args:
        say: returns ``[samples]`` float32 at 24 kHz for a text.
        listener: recognises the words.
    """

    def __init__(self, say: Say, listener: MakeListener = Recogniser) -> None:
        self._say = say
        self._listener = listener

    def digits(self, strings: Sequence[str] = DIGIT_STRINGS) -> Understood:
        """Word errors in strings of digits."""
        rows = [[DIGITS[int(digit)] for digit in string.split()] for string in strings]
        return self._word_errors([f"{string}." for string in strings], rows, DIGITS)

    def words(self, rows: Sequence[str] = WORD_ROWS) -> Understood:
        """Word errors in rows of :data:`WORDS`."""
        return self._word_errors([f"{row.capitalize()}." for row in rows], [row.split() for row in rows], WORDS)

    def sentences(self, sentences: Sequence[str] = SENTENCES) -> Understood:
        """Count the sentences that are heard as themselves rather than as one of the others."""
        known = [plain_words(sentence) for sentence in sentences]
        with self._listener([word for words in known for word in words]) as recogniser:
            told = [
                [
                    _nearest(known, recogniser.hear(change(self._say(sentences[index])))) == index
                    for index in range(0, len(sentences), stride)
                ]
                for change, stride in HEARD
            ]
        return Understood(*(sum(each) / len(each) for each in told))

    def _word_errors(self, texts: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str]) -> Understood:
        with self._listener(words) as recogniser:
            shares = [
                sum(
                    word_errors(row, recogniser.hear(change(self._say(text))))
                    for text, row in zip(texts[::stride], rows[::stride], strict=True)
                )
                / sum(map(len, rows[::stride]))
                for change, stride in HEARD
            ]
        return Understood(*shares)


def named_listener(name: str) -> MakeListener:
    """Return the object that ``MODULE:NAME`` refers to.

    Raises:
        InvalidRequestError: there is nothing of this name.
    """
    try:
        found: MakeListener = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise InvalidRequestError(
            f"recogniser {name!r} cannot be had: {error}; expected MODULE:NAME of a callable that takes a list of "
            f"words and makes what {__name__}.Listener describes"
        ) from error
    return found


def speaker(engine: Engine, voice: Voice) -> Say:
    """Says texts in English with the checkpoint's own sampling, each once."""

    @cache
    def say(text: str) -> Pcm:
        stream = engine.speak(text, voice=voice, language="english", seed=1, max_frames=LONGEST)
        return np.concatenate([chunk.pcm for chunk in stream])

    return say


def many_texts(count: int) -> list[str]:
    """Return this many texts of five words or digits each: the fixed ones first, then their words in other orders."""
    fixed = [f"{row}." for row in (*DIGIT_STRINGS, *(row.capitalize() for row in WORD_ROWS))] + list(SENTENCES)
    return (fixed + [f"{row.capitalize()}." for row in _other_rows(max(0, count - len(fixed)))])[:count]


def many_rows(count: int) -> list[str]:
    """Return this many rows of five loose words: the fixed ones first, then their words in other orders."""
    return [*WORD_ROWS, *_other_rows(max(0, count - len(WORD_ROWS)))][:count]


def _other_rows(count: int) -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.sample(WORDS, 5)) for _ in range(count)]


def plain_words(text: str) -> list[str]:
    """Lower case, without punctuation."""
    return re.sub(r"[^a-z' ]", " ", text.lower()).split()


def disordered(pcm: Pcm) -> Pcm:
    """The same frames of 80 ms in another, fixed order."""
    frames = pcm[: len(pcm) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    return frames[np.random.default_rng(0).permutation(len(frames))].ravel()


HEARD = ((np.asarray, 1), (disordered, CONTROLS))
"""Changes of the sound before it is heard; each one applies to every n-th text."""


def _nearest(known: Sequence[Sequence[str]], heard: Sequence[str]) -> int | None:
    """The only sentence with the fewest errors; ``None`` when several have as few."""
    errors = [word_errors(words, heard) for words in known]
    best = min(errors)
    return errors.index(best) if errors.count(best) == 1 else None
