"""Recognisers that need no model, to be named as users name theirs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from megatalker_conformance.intelligibility import Pcm


class Expectant:
    """A listener that always hears the first word it expects."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def hear(self, pcm: Pcm) -> list[str]:
        return [self._words[0]]


@contextmanager
def expectant(words: Sequence[str]) -> Iterator[Expectant]:
    yield Expectant(words)
