"""The text of one utterance, cut into passages: each is spoken by a decoder stream of its own.

Text given at once is cut by :func:`megatalker.prompt.sentences.split_sentences`: as many whole sentences as fit. Text
that arrives bit by bit is spoken before its sentences are known, so its passage ends at the first sentence end at or
after ``max_chars``, or at the first space from twice as many, or anywhere from four times, whichever comes first. That
needs one character of look-ahead and nothing else: it does not depend on how the text was split into pieces. Up to
``max_chars`` both ways are the same.

End of speech ends the decoder stream, as it officially does. It is not held back while text is still to come: that
would change codes. What the stream had not read by then is not lost either: it becomes a passage of its own. Passages
without a letter or digit are not spoken.
"""

import re
import unicodedata
from typing import Any

from megatalker.prompt.text import IncrementalTokenizer

_SENTENCE_END = re.compile(
    r"""[.!?…]+["'”’»)\]]*(?=\s)"""  # noqa: RUF001 - where words are separated by spaces
    r"""|[。！？｡]+[”’」』）》]*(?=[^。！？｡”’」』）》])"""  # noqa: RUF001 - and where they are not
    r"""|(?<=\S)(?=\n)"""
)
_SPACE = re.compile(r"(?<=\S)(?=\s)")
_PATIENCE = 2
_LIMIT = 4


class Passage:
    """Text of one decoder stream, and its token ids as far as they are certain."""

    def __init__(self, tokenizer: Any, skipped: int = 0) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.complete = False
        self.skipped = skipped
        """Characters of what was cut as one passage that are not in ``text``: blanks, and what was spoken before."""
        self._tokenizer = tokenizer
        self._incremental = IncrementalTokenizer(tokenizer)

    @property
    def speakable(self) -> bool:
        """There is a letter or digit in it."""
        return any(character.isalnum() for character in self.text)

    def feed(self, text: str) -> None:
        """Append text."""
        if not self.text:
            stripped = text.lstrip()
            self.skipped += len(text) - len(stripped)
            text = stripped
        if text:
            self.text += text
            self.ids += self._incremental.feed(text)

    def finish(self) -> None:
        """No text will be appended."""
        if not self.complete:
            self.ids += self._incremental.finish()
            self.complete = True

    def rest(self, ids_fed: int) -> "Passage":
        """A new passage with the text that follows the first ``ids_fed`` ids."""
        read: str = self._tokenizer.decode(self.ids[:ids_fed], skip_special_tokens=False)
        start = len(read.rstrip("\ufffd"))  # half a character was read: read it again
        rest = Passage(self._tokenizer, self.skipped + start)
        rest.feed(unicodedata.normalize("NFC", self.text)[start:])  # as the tokenizer does
        return rest


def cut_point(passage: Passage, text: str, max_chars: int) -> int | None:
    """Where ``text``, which follows ``passage``, leaves it: an index into ``text``, or ``None`` for "not in here"."""
    known, joined = len(passage.text), passage.text + text
    cuts = []
    if len(joined) > (latest := max(known, max_chars * _LIMIT - passage.skipped)):
        cuts.append(latest)
    for pattern, patience in ((_SENTENCE_END, 1), (_SPACE, _PATIENCE)):
        earliest = max(known, max_chars * patience - passage.skipped)
        ends = (match.end() for match in pattern.finditer(joined))
        cuts.extend(next(([end] for end in ends if end >= earliest), []))
    return min(cuts) - known if cuts else None
