"""The text of one utterance, cut into segments: each is spoken by a decoder stream of its own.

Text given at once is cut by :func:`megatalker.prompt.sentences.split_sentences`: as many whole sentences as fit. Text
that arrives bit by bit is spoken before its sentences are known, so its segment ends at the first sentence end at or
after ``max_chars``, or at the first space from twice as many, or anywhere from four times, whichever comes first. That
needs one character of look-ahead and nothing else: it does not depend on how the text was split into pieces. Up to
``max_chars`` both ways are the same.

End of speech ends the decoder stream, as it officially does. It is not held back while text is still to come: that
would change codes. What the stream had not read by then is not lost either: it becomes a segment of its own. Segments
without a letter or digit are not spoken.
"""

import re
import unicodedata
from collections import deque
from typing import Any

from megatalker.engine.words import letters
from megatalker.prompt.text import IncrementalTokenizer, speakable

_SENTENCE_END = re.compile(
    r"""[.!?…]+["'”’»)\]]*(?=\s)"""  # noqa: RUF001 - where words are separated by spaces
    r"""|[。！？｡]+[”’」』）》]*(?=[^。！？｡”’」』）》])"""  # noqa: RUF001 - and where they are not
    r"""|(?<=\S)(?=\n)"""
)
_SPACE = re.compile(r"(?<=\S)(?=\s)")
_SPACE_FACTOR = 2
"""A segment that found no end of a sentence ends at a space from this many times ``max_chars``,"""
_HARD_FACTOR = 4
"""and anywhere from this many times."""


class TextSegment:
    """Text of one decoder stream, and its token ids as far as they are certain."""

    def __init__(self, tokenizer: Any, skipped: int = 0) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.complete = False
        self.skipped = skipped
        """Characters of what was cut as one segment that are not in ``text``: blanks, and what was spoken before."""
        self._tokenizer = tokenizer
        self._incremental = IncrementalTokenizer(tokenizer)

    @property
    def speakable(self) -> bool:
        """There is a letter or digit in it."""
        return speakable(self.text)

    def feed(self, text: str) -> None:
        """Append text."""
        if not self.text:
            stripped = text.lstrip()
            self.skipped += len(text) - len(stripped)
            text = stripped
        if text:
            self.text += text
            self.ids += self._incremental.feed(text)

    def fill(self, text: str) -> None:
        """All of its text, stripped, at once."""
        self.text, self.ids, self.complete = text, self._incremental.whole(text), True

    def finish(self) -> None:
        """No text will be appended."""
        if not self.complete:
            self.ids += self._incremental.finish()
            self.complete = True

    def rest(self, ids_fed: int) -> "TextSegment":
        """A new segment with the text that follows the first ``ids_fed`` ids."""
        read: str = self._tokenizer.decode(self.ids[:ids_fed], skip_special_tokens=False)
        start = len(read.rstrip("\ufffd"))  # half a character was read: read it again
        rest = TextSegment(self._tokenizer, self.skipped + start)
        rest.feed(unicodedata.normalize("NFC", self.text)[start:])  # as the tokenizer does
        return rest


def _cut_point(segment: TextSegment, text: str, max_chars: int) -> int | None:
    """Where ``text``, which follows ``segment``, leaves it: an index into ``text``, or ``None`` for "not in here"."""
    known, joined = len(segment.text), segment.text + text
    cuts = []
    if len(joined) > (latest := max(known, max_chars * _HARD_FACTOR - segment.skipped)):
        cuts.append(latest)
    for pattern, factor in ((_SENTENCE_END, 1), (_SPACE, _SPACE_FACTOR)):
        earliest = max(known, max_chars * factor - segment.skipped)
        ends = (match.end() for match in pattern.finditer(joined))
        cuts.extend(next(([end] for end in ends if end >= earliest), []))
    return min(cuts) - known if cuts else None


class TextSegmenter:
    """Which segment of an utterance is spoken, which come next, and where arriving text goes.

    Not thread-safe: its owner is the worker, once the request is accepted.

    Args:
        tokenizer: the checkpoint's.
        max_chars: see the module.
        ids_needed: ids that must be known before a segment whose text still arrives can begin.
    """

    def __init__(self, tokenizer: Any, max_chars: int, ids_needed: int = 1) -> None:
        self._tokenizer, self._max_chars, self._ids_needed = tokenizer, max_chars, ids_needed
        self._coming: deque[TextSegment] = deque()
        self._current: TextSegment | None = None
        self._open: TextSegment | None = None
        """The segment that text is appended to: the current one or the last one coming."""
        self._finished = False
        self.characters = 0
        """Of all text so far."""
        self.letters_said = 0
        """Letters and digits of the segments that are over."""

    @property
    def coming(self) -> tuple[TextSegment, ...]:
        """Segments that have not begun."""
        return tuple(self._coming)

    @property
    def upcoming(self) -> TextSegment:
        """The segment that begins next; there is one when :attr:`can_begin`."""
        return self._coming[0]

    @property
    def can_begin(self) -> bool:
        """The next segment can be spoken: all of it is known, or enough to start with."""
        if self._current is not None or not self._coming:
            return False
        segment = self._coming[0]
        return segment.complete or (segment.speakable and len(segment.ids) >= self._ids_needed)

    @property
    def exhausted(self) -> bool:
        """Everything has been spoken, and nothing will come."""
        return self._finished and self._current is None and not self._coming

    def add(self, text: str) -> None:
        """Append a complete segment, stripped."""
        self.characters += len(text)
        self._append(TextSegment(self._tokenizer)).fill(text)
        self._close()

    def feed(self, text: str) -> None:
        """Append a piece of text that arrives bit by bit."""
        self.characters += len(text)
        while text:
            segment = self._open or self._append(TextSegment(self._tokenizer))
            cut = _cut_point(segment, text, self._max_chars)
            if cut is None:
                segment.feed(text)
                return
            segment.feed(text[:cut])
            self._close()
            text = text[cut:]

    def finish(self) -> None:
        """No text will be appended."""
        self._close()
        self._finished = True

    def begin(self) -> None:
        """The upcoming segment is being spoken."""
        self._current = self._coming.popleft()

    def end(self, ids_fed: int) -> None:
        """The current segment's decoder stream ended after reading ``ids_fed`` ids: the rest is spoken next."""
        current, self._current = self._current, None
        if current is None:
            raise RuntimeError("no segment is being spoken")
        rest = current.rest(ids_fed)
        self.letters_said += letters(current.text) - letters(rest.text)
        self._coming.appendleft(rest)
        if current is self._open:
            self._open = rest
            return
        rest.finish()
        if not rest.speakable:
            self._coming.popleft()

    def _append(self, segment: TextSegment) -> TextSegment:
        self._coming.append(segment)
        self._open = segment
        return segment

    def _close(self) -> None:
        segment, self._open = self._open, None
        if segment is None:
            return
        segment.finish()
        if segment is not self._current and not segment.speakable:
            self._coming.remove(segment)
