"""Checks text, and turns text that arrives piece by piece into the token ids of the whole text."""

import re
import unicodedata
from collections.abc import Collection
from typing import Any

from megatalker.errors import InvalidRequestError

__all__ = ["IncrementalTokenizer", "TextChecker", "check_piece", "clean_text", "control_tokens", "speakable"]

_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


def clean_text(text: object, max_chars: int, tokens: Collection[str] = ()) -> str:
    """The text without surrounding whitespace.

    Args:
        text: what the caller passed.
        max_chars: the longest text accepted, counted after stripping.
        tokens: :func:`control_tokens` of the checkpoint, which text must not contain.

    Raises:
        InvalidRequestError: not a string, blank, too long, or as :func:`check_piece`, or a control token.
    """
    cleaned = check_piece(text).strip()
    if not cleaned:
        raise InvalidRequestError("the text is empty; expected at least one word to speak")
    if len(cleaned) > max_chars:
        raise InvalidRequestError(
            f"the text has {len(cleaned)} characters, expected at most {max_chars}; "
            "send it in parts, or raise the setting max_text_chars"
        )
    _refuse_control_tokens(cleaned, tokens)
    return cleaned


def check_piece(text: object) -> str:
    """Text, or a piece of it, unchanged.

    Raises:
        InvalidRequestError: not a string, or it holds a NUL character or half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"the text is of type {type(text).__name__}, expected str")
    found = _NOT_TEXT.search(text)
    if found is not None:
        character, position = found[0], found.start()
        kind = "a NUL character" if character == "\0" else f"a lone surrogate (U+{ord(character):04X})"
        raise InvalidRequestError(
            f"the text holds {kind} at position {position}, expected Unicode text; "
            "remove it, or decode the source with the right encoding"
        )
    return text


def speakable(text: str) -> bool:
    """There is a letter or digit in it: something to say."""
    return any(map(str.isalnum, text))


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The strings that the tokenizer turns into control ids, such as ``<|im_end|>`` and ``<tts_pad>``."""
    return tuple(token.content for token in tokenizer.get_added_tokens_decoder().values())


class TextChecker:
    """Checks the pieces of one text that arrives bit by bit.

    Args:
        tokens: :func:`control_tokens` of the checkpoint.
        max_chars: the longest text accepted, all pieces together.
    """

    def __init__(self, tokens: Collection[str], max_chars: int) -> None:
        self._tokens, self._max_chars = tokens, max_chars
        self._reach = max(map(len, tokens), default=1) - 1
        self._tail = ""
        self._chars = 0

    def check(self, text: object) -> str:
        """The next piece, unchanged. A refused piece leaves no trace.

        Raises:
            InvalidRequestError: as :func:`check_piece`; a control token, also one that the pieces form together; or the
                text is too long.
        """
        piece = check_piece(text)
        joined = self._tail + piece
        _refuse_control_tokens(joined, self._tokens)
        chars = self._chars + len(piece)
        if chars > self._max_chars:
            raise InvalidRequestError(
                f"the text has {chars} characters so far, expected at most {self._max_chars} in one stream; "
                "open another one, or raise the setting max_text_chars"
            )
        self._tail, self._chars = joined[max(0, len(joined) - self._reach) :], chars
        return piece


def _refuse_control_tokens(text: str, tokens: Collection[str]) -> None:
    for token in tokens:
        if token in text:
            raise InvalidRequestError(
                f"the text contains the control token {token!r}, expected plain text; remove it or write it in words"
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
    """Whether the Qwen2 word splitter parts these neighbours whatever stands around them.

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
