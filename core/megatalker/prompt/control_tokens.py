"""The strings that a checkpoint's tokenizer turns into control ids, and how they are found in text."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["ControlTokens", "control_tokens"]

_CHAT = r"<\|\w{1,32}\|>"
"""Control tokens of language models, of whichever one wrote the text."""
_CHAT_PREFIX = r"<(?:\|(?:\w{0,32}\|?)?)?\Z"


def control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """The strings that the tokenizer turns into control ids, such as ``<|im_end|>`` and ``<tts_pad>``."""
    return tuple(token.content for token in tokenizer.get_added_tokens_decoder().values())


@dataclass(frozen=True, slots=True)
class _Found:
    start: int
    end: int
    complete: bool
    """``False``: more text may make a token of it."""


class ControlTokens:
    """Finds control tokens; linear in the length of any text. Immutable.

    Args:
        tokens: :func:`control_tokens` of a checkpoint. Those of the form ``<|name|>`` are always found.
    """

    def __init__(self, tokens: Collection[str] = ()) -> None:
        self.tokens = frozenset(tokens)
        self.first = frozenset("<") | {token[0] for token in self.tokens if token}
        """First characters of all tokens."""
        self.reach = max(map(len, self.tokens), default=1) - 1
        """Characters of a token that can stand at the end of a text without being one."""
        trie = _trie(self.tokens)
        own = _pattern(trie, open_end=False)
        self._own = re.compile(own) if own else None
        self._whole = re.compile("|".join([_CHAT, *([own] if own else [])]))
        beginning = _pattern(trie, open_end=True)
        self._growing = re.compile("|".join([_CHAT_PREFIX, _CHAT, *([beginning] if beginning else [])]))
        self._prefixes = {token[:end] for token in self.tokens for end in range(1, len(token))}

    def __deepcopy__(self, memo: object) -> "ControlTokens":
        return self

    def first_in(self, text: str) -> str | None:
        """The first of the checkpoint's tokens that ``text`` contains."""
        found = None if self._own is None or self.first.isdisjoint(text) else self._own.search(text)
        return None if found is None else found.group()

    def find(self, text: str, *, final: bool) -> Iterator[_Found]:
        """The tokens in ``text`` from left to right; unless it is ``final``, also the beginning of one at its end."""
        for match in (self._whole if final else self._growing).finditer(text):
            found, at_end = match.group(), match.end() == len(text)
            complete = final or not (at_end and (found in self._prefixes or not self._is_token(found)))
            yield _Found(match.start(), match.end(), complete)

    def _is_token(self, text: str) -> bool:
        return text in self.tokens or self._whole.fullmatch(text) is not None


_Trie = dict[str, "_Trie"]


def _trie(tokens: Collection[str]) -> _Trie:
    root: _Trie = {}
    for token in filter(None, tokens):
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return root


def _pattern(node: _Trie, *, open_end: bool, root: bool = True) -> str:
    """A regular expression for the strings of a trie, longest first; ``open_end``: and for their beginnings at the end
    of the text.
    """
    branches = [
        re.escape(character) + _pattern(child, open_end=open_end, root=False)
        for character, child in node.items()
        if character
    ]
    if root:
        return "|".join(branches)
    if open_end and branches:
        branches.append(r"\Z")
    if "" in node:
        branches.append("")
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
