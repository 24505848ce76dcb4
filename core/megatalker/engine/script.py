"""Which passage of an utterance is spoken, which come next, and where arriving text goes."""

from collections import deque
from typing import Any

from megatalker.engine.passages import Passage, cut_point


class Script:
    """The text of one utterance. Not thread-safe: its owner is the worker, once the request is accepted.

    Args:
        tokenizer: the checkpoint's.
        max_chars: see :mod:`megatalker.engine.passages`.
        ids_needed: ids that must be known before a passage whose text still arrives can begin.
    """

    def __init__(self, tokenizer: Any, max_chars: int, ids_needed: int = 1) -> None:
        self._tokenizer, self._max_chars, self._ids_needed = tokenizer, max_chars, ids_needed
        self._coming: deque[Passage] = deque()
        self._current: Passage | None = None
        self._open: Passage | None = None
        """The passage that text is appended to: the current one or the last one coming."""
        self._finished = False

    @property
    def coming(self) -> tuple[Passage, ...]:
        """Passages that have not begun."""
        return tuple(self._coming)

    @property
    def upcoming(self) -> Passage:
        """The passage that begins next; there is one when :attr:`can_begin`."""
        return self._coming[0]

    @property
    def can_begin(self) -> bool:
        """The next passage can be spoken: all of it is known, or enough to start with."""
        if self._current is not None or not self._coming:
            return False
        passage = self._coming[0]
        return passage.complete or (passage.speakable and len(passage.ids) >= self._ids_needed)

    @property
    def exhausted(self) -> bool:
        """Everything has been spoken, and nothing will come."""
        return self._finished and self._current is None and not self._coming

    def add(self, text: str) -> None:
        """Append a complete passage."""
        self._append(Passage(self._tokenizer)).feed(text)
        self._close()

    def feed(self, text: str) -> None:
        """Append a piece of text that arrives bit by bit."""
        while text:
            passage = self._open or self._append(Passage(self._tokenizer))
            cut = cut_point(passage, text, self._max_chars)
            if cut is None:
                passage.feed(text)
                return
            passage.feed(text[:cut])
            self._close()
            text = text[cut:]

    def finish(self) -> None:
        """No text will be appended."""
        self._close()
        self._finished = True

    def begin(self) -> None:
        """The upcoming passage is being spoken."""
        self._current = self._coming.popleft()

    def end(self, ids_fed: int) -> None:
        """The current passage's decoder stream ended after reading ``ids_fed`` ids: the rest is spoken next."""
        current, self._current = self._current, None
        if current is None:
            raise RuntimeError("no passage is being spoken")
        rest = current.rest(ids_fed)
        self._coming.appendleft(rest)
        if current is self._open:
            self._open = rest
            return
        rest.finish()
        if not rest.speakable:
            self._coming.popleft()

    def _append(self, passage: Passage) -> Passage:
        self._coming.append(passage)
        self._open = passage
        return passage

    def _close(self) -> None:
        passage, self._open = self._open, None
        if passage is None:
            return
        passage.finish()
        if passage is not self._current and not passage.speakable:
            self._coming.remove(passage)
