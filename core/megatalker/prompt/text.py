"""Checks text, and turns text that arrives piece by piece into the token ids of the whole text."""

import re
import unicodedata
from copy import deepcopy
from typing import Any, Protocol, Self

from megatalker.errors import InvalidRequestError, MarkupError
from megatalker.prompt.cleaning import TextCleaner, clean, join_surrogates
from megatalker.prompt.control_tokens import ControlTokens

__all__ = [
    "IncrementalTokenizer",
    "MarkupText",
    "Rewriter",
    "TextChecker",
    "check_characters",
    "check_text",
    "has_speech",
    "prepare_text",
    "require_text",
    "speakable",
]


class Rewriter(Protocol):
    """Rewrites one clean text in pieces; see :class:`megatalker.prompt.rewriting.TextRewriter`."""

    def feed(self, text: str) -> str:
        """Return what is certain to be said after this piece."""

    def finish(self) -> str:
        """Return what was held back, since no text follows."""

    def copy(self) -> Self:
        """Return another one in the same state."""


class MarkupText(Protocol):
    """Cleans and rewrites one text in markup in pieces; see :class:`megatalker.prompt.markup.MarkedText`."""

    def feed(self, text: str) -> str:
        """Return what is certain to be spoken after this piece; raises ``MarkupError``."""

    def finish(self) -> str:
        """Return what was held back, since no text follows; raises ``MarkupError``."""


WRITTEN_OUT = "the text, written out,"
"""Names a text that markup or rewriting has made longer than its caller sent it."""
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


def prepare_text(
    text: object,
    max_chars: int,
    tokens: ControlTokens,
    *,
    cleaning: bool = True,
    rewriter: Rewriter | None = None,
    marked: MarkupText | None = None,
) -> str:
    """A whole text as it is spoken: cleaned (:mod:`megatalker.prompt.cleaning`) and rewritten, or only checked.

    Args:
        text: what the caller passed.
        max_chars: the longest text accepted, counted after stripping, at first, when cleaned and when rewritten.
        tokens: the checkpoint's, which become spaces; without ``cleaning`` text must not contain them.
        cleaning: ``False`` leaves the text as it is, except for surrounding white space.
        rewriter: a new one, which rewrites the clean text; ``None``: nothing does.
        marked: a new one, for a text in markup, which is cleaned and rewritten by it.

    Raises:
        InvalidRequestError: not a string, blank or too long; without ``cleaning`` also as :func:`check_text`.
        MarkupError: markup is faulty.
    """
    if not cleaning:
        return check_text(text, max_chars, tokens)
    stripped = _bounded(require_text(text), max_chars)
    if marked is not None:
        written = require_text(text)  # all of it: errors tell places
        return _bounded(marked.feed(written) + marked.finish(), max_chars, WRITTEN_OUT)
    cleaned = clean(stripped, tokens)
    cleaned = _bounded(cleaned, max_chars) if cleaned else ""
    if rewriter is None or not cleaned:
        return cleaned
    return _bounded(rewriter.feed(cleaned) + rewriter.finish(), max_chars, WRITTEN_OUT)


def check_text(text: object, max_chars: int, tokens: ControlTokens | None = None) -> str:
    """The text as it is, without surrounding white space.

    Args:
        text: what the caller passed.
        max_chars: the longest text accepted, counted after stripping.
        tokens: of the checkpoint, which text must not contain.

    Raises:
        InvalidRequestError: not a string, blank, too long, or it holds a NUL character, half of a surrogate pair or a
            control token.
    """
    checked = _bounded(require_text(text), max_chars)
    check_characters(checked)
    _refuse_control_tokens(checked, tokens)
    return checked


def require_text(text: object) -> str:
    """``text`` if it is a string; raises ``InvalidRequestError`` for anything else."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"the text is of type {type(text).__name__}, expected str")
    return text


def speakable(text: str) -> bool:
    """There is a letter or digit in this clean text: something to say."""
    return any(map(str.isalnum, text))


def has_speech(text: str) -> bool:
    """There is something to say in a text that has not been cleaned."""
    return speakable(clean(text))


def _bounded(text: str, max_chars: int, what: str = "the text") -> str:
    stripped = text.strip()
    if not stripped:
        raise InvalidRequestError("the text is empty; expected at least one word to speak")
    if len(stripped) > max_chars:
        raise InvalidRequestError(
            f"{what} has {len(stripped)} characters, expected at most {max_chars}; "
            "send it in parts, or raise the setting max_text_chars"
        )
    return stripped


def check_characters(text: str) -> str:
    """``text``; raises ``InvalidRequestError`` for a NUL character or half of a surrogate pair."""
    found = _NOT_TEXT.search(text)
    if found is not None:
        character, position = found[0], found.start()
        kind = "a NUL character" if character == "\0" else f"a lone surrogate (U+{ord(character):04X})"
        raise InvalidRequestError(
            f"the text holds {kind} at position {position}, expected Unicode text; "
            "remove it, decode the source with the right encoding, or leave clean_text on"
        )
    return text


def _refuse_control_tokens(text: str, tokens: ControlTokens | None) -> None:
    token = None if tokens is None else tokens.first_in(text)
    if token is not None:
        raise InvalidRequestError(
            f"the text contains the control token {token!r}, expected plain text; remove it, write it in words, "
            "or leave clean_text on"
        )


class TextChecker:
    """Checks the pieces of one text that arrives bit by bit, and cleans them unless told not to.

    Args:
        tokens: control tokens of the checkpoint.
        max_chars: the longest text accepted, all pieces together, at first, when cleaned and when rewritten.
        cleaning: ``False`` leaves the text as it is, and refuses what cannot be spoken.
        rewriter: a new one, which rewrites the clean text; ``None``: nothing does.
        marked: a new one, for a text in markup, which is cleaned and rewritten by it.
    """

    def __init__(
        self,
        tokens: ControlTokens,
        max_chars: int,
        *,
        cleaning: bool = True,
        rewriter: Rewriter | None = None,
        marked: MarkupText | None = None,
    ) -> None:
        self._tokens, self._max_chars, self._rewriter, self._marked = tokens, max_chars, rewriter, marked
        self._cleaner = TextCleaner(tokens) if cleaning else None
        self._half = self._tail = ""
        """Without cleaning: half a character, and the end of the text, in which a control token may have begun."""
        self._chars = self._cleaned_chars = self._rewritten_chars = 0

    def check(self, text: object) -> str:
        """Return the text to speak after this piece. A refused piece leaves no trace.

        Raises:
            InvalidRequestError: not a string, or the text is too long. Without cleaning also for a NUL character, half
                a surrogate pair whose other half does not follow, and a control token, also one that the pieces form
                together.
            MarkupError: markup is faulty, or says more than ``max_chars``; no piece can follow.
        """
        piece = require_text(text)
        self._require_room(self._chars + len(piece))
        if self._marked is not None:
            return self._mark(piece, self._marked.feed(piece))
        ready = self._pass(piece) if self._cleaner is None else self._clean(self._cleaner, piece)
        self._chars += len(piece)
        return ready

    def finish(self) -> str:
        """Return the text that was held back, since it is complete now."""
        if self._marked is not None:
            return self._mark("", self._marked.finish())
        rest = "" if self._cleaner is None else self._cleaner.finish()
        return rest if self._rewriter is None else self._rewriter.feed(rest) + self._rewriter.finish()

    def _mark(self, piece: str, said: str) -> str:
        self._chars += len(piece)
        self._rewritten_chars += len(said)
        try:
            self._require_room(self._rewritten_chars, WRITTEN_OUT)
        except InvalidRequestError as error:
            raise MarkupError(str(error)) from error
        return said

    def _clean(self, cleaner: TextCleaner, piece: str) -> str:
        rewriter = None if self._rewriter is None else self._rewriter.copy()
        sure = rewriter is None and self._cleaned_chars + 4 * len(piece) < self._max_chars
        before = None if sure else deepcopy(cleaner)
        ready = cleaner.feed(piece)
        try:
            self._require_room(self._cleaned_chars + len(ready))
            said = ready if rewriter is None else rewriter.feed(ready)
            self._require_room(self._rewritten_chars + len(said), WRITTEN_OUT)
        except InvalidRequestError:
            self._cleaner = before
            raise
        self._rewriter = rewriter
        self._cleaned_chars += len(ready)
        self._rewritten_chars += len(said)
        return said

    def _pass(self, piece: str) -> str:
        half, self._half = self._half, ""  # a half that stays alone is not kept for the piece after the refused one
        whole, rest = join_surrogates(half + piece)
        check_characters(whole)
        joined = self._tail + whole
        _refuse_control_tokens(joined, self._tokens)
        self._half = rest
        self._tail = joined[max(0, len(joined) - self._tokens.reach) :]
        return whole

    def _require_room(self, chars: int, what: str = "the text") -> None:
        if chars > self._max_chars:
            raise InvalidRequestError(
                f"{what} has {chars} characters so far, expected at most {self._max_chars} in one stream; "
                "open another one, or raise the setting max_text_chars"
            )


class IncrementalTokenizer:
    """Token ids of a text that arrives in pieces.

    The ids of all :meth:`feed` calls and of :meth:`finish`, one after another, equal those of the whole text, stripped
    of surrounding whitespace, inside the official template. An id is handed out as soon as no later text can change it:
    a word when the space, punctuation mark or digit after it has come.

    Args:
        tokenizer: a Qwen2 tokenizer (:attr:`megatalker.checkpoint.Checkpoint.tokenizer`).
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pending = ""
        self._started = False
        self._finished = False

    def feed(self, text: str) -> list[int]:
        """Add a piece of checked text (:class:`TextChecker`), cut anywhere; the ids settled by it, often none."""
        if self._finished:
            raise RuntimeError("text was fed after finish(); begin a new text instead")
        if not self._started:
            text = text.lstrip()
            self._started = bool(text)
        checked = len(self._pending)
        self._pending += text
        cut = _last_boundary(self._pending, checked)
        settled, self._pending = self._pending[:cut], self._pending[cut:]
        return self._encode(settled)

    def finish(self) -> list[int]:
        """The text is complete; returns the remaining ids. Call it once."""
        if self._finished:
            raise RuntimeError("finish() was called twice; begin a new text instead")
        self._finished = True
        return self._encode(self._pending.rstrip())

    def whole(self, text: str) -> list[int]:
        """The ids of a text that is all there and stripped; call nothing else then."""
        self._finished = True
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _last_boundary(text: str, checked: int) -> int:
    """The last place where the text can be cut for good, or 0; none lies before ``checked`` (places already tried)."""
    for place in range(len(text) - 1, max(checked, 1) - 1, -1):
        if _always_parted(text[place - 1], text[place]):
            return place
    return 0


def _always_parted(left: str, right: str) -> bool:
    """Whether the Qwen2 word splitter parts these neighbours, regardless of the characters around them.

    Its words are runs of letters with at most one other character in front, single digits, and runs of other characters
    with one space in front and line breaks behind. Accents and their like may melt into the character before them (NFC,
    applied first), so nothing is cut in front of those.
    """
    if left.isspace():
        return False
    after = _kind(unicodedata.normalize("NFC", right)[0])
    before = _kind(unicodedata.normalize("NFC", left)[-1])
    if after in ("space", "digit"):
        return True
    if after in ("break", "mark"):
        return before in ("letter", "digit")
    return after == "letter" and before == "digit"


def _kind(character: str) -> str:
    if character in "\r\n":
        return "break"
    category = unicodedata.category(character)
    if category == "Zs":
        return "space"
    return {"L": "letter", "N": "digit", "P": "mark", "S": "mark"}.get(category[0], "other")
