"""Makes text fit to be spoken, in the form that the model was trained on; the one place that decides it.

For text at once and text in pieces, on every face. What comes out does not depend on how the text was cut, and plain
text comes out as it came in. In this order:

1. Surrogate halves are joined, also those of two pieces.
2. ANSI escape sequences vanish.
3. Each character becomes what :data:`~megatalker.prompt.characters.CHARACTERS` says: letters in disguise become plain,
   characters without a sound vanish, and what cannot be text becomes a space.
4. Zero-width joiners stay only where a script or an emoji needs them.
5. Of the marks on one character :data:`MOST_MARKS` stay.
6. Control tokens become a space.
7. White space becomes one plain space; a blank line, or a paragraph separator, is a space and a paragraph separator.
   No other line breaks are left.

Work is linear in the text, and what is held back for the next piece is bounded: half a character, a joiner, or the
beginning of an escape sequence or a control token.
"""

import re
import unicodedata
from collections.abc import Iterator

from megatalker.prompt.characters import CHARACTERS, ZWJ
from megatalker.prompt.control_tokens import ControlTokens

__all__ = ["PARAGRAPH_END", "TextCleaner", "clean", "join_surrogates", "paragraphs"]

PARAGRAPH_END = "\u2029"
"""Unicode's paragraph separator. No line break, so that clean text is left as it is when it is cleaned again."""

MOST_MARKS = 30
"""Combining marks on one character, as in Unicode's stream-safe text (UAX #15), which no language exceeds. Thousands of
them, which have no sound, would be spoken for minutes."""

_ODD = re.compile(r"[^ -~]|  ")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = "\x1b\x9b"
_ESCAPE = (
    r"\x1b\[[0-?]{0,64}[ -/]{0,4}[@-~]|\x9b[0-9;]{1,64}[A-Za-z]"  # colours and cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]{0,256}(?:\x07|\x1b\\)"  # titles and links
    r"|\x1b[#%()*+\-./][0-~]|\x1b[78=>\[\]]"
)
_ESCAPE_PREFIX = (
    r"\x1b\[[0-?]{0,64}[ -/]{0,4}\Z|\x9b[0-9;]{0,64}\Z"
    r"|\x1b[\]PX^_][^\x07\x1b]{0,256}\x1b?\Z|\x1b[#%()*+\-./]?\Z"
)
_WHOLE_ESCAPE = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,4}\Z|" + _ESCAPE)
_GROWING_ESCAPE = re.compile(f"(?P<prefix>{_ESCAPE_PREFIX})|{_ESCAPE}")
_MAYBE_MARK = re.compile("[^\x00-\u02ff\\w]")
_JOINERS = re.compile("[\u200c\u200d]+")
_JOINING = re.compile("[\u0600-\u08ff\u0900-\u0dff\u0f00-\u0fff\u1000-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc]")
"""Scripts in which a joiner changes the letter before it: Arabic, Syriac, N'Ko, those of India, Tibetan, Burmese,
Khmer, Mongolian."""
_PICTURE = re.compile("[\u00a9\u00ae\u203c\u2049\u2139\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]")
"""Emoji, also their skin tones."""
_WHITE_SPACE = re.compile(r"\s+")
_ODD_SPACE = re.compile(r"[^\S ]|  ")
_LINE_BREAK = re.compile("[\n\r\x0b\x0c\x85\u2028\u2029]")


class TextCleaner:
    """Cleans one text that arrives in pieces. What all :meth:`feed` calls and :meth:`finish` return, one after another,
    is the clean text.

    Args:
        tokens: the checkpoint's control tokens.
    """

    def __init__(self, tokens: ControlTokens | None = None) -> None:
        self._tokens = ControlTokens() if tokens is None else tokens
        self._raw = ""
        """Held back: half a character, or the beginning of an escape sequence."""
        self._joiner = ""
        self._before = ""
        """The last character before joiners are looked at again."""
        self._marks = 0
        """Marks at the end of the text so far."""
        self._token = ""
        self._spaces = _Spaces()

    def feed(self, piece: str) -> str:
        """The clean text that ``piece`` makes certain; words are not held back for what may follow them."""
        if not self.holds_back and _ODD.search(piece) is None and self._tokens.first.isdisjoint(piece):
            if piece:
                self._before, self._marks = piece[-1], 0
            return self._spaces.fold(piece)
        return self._clean(piece, final=False)

    @property
    def holds_back(self) -> bool:
        """Whether some text waits for what may follow it."""
        return bool(self._raw or self._joiner or self._token)

    def finish(self) -> str:
        """Return the text that was held back, since no more follows."""
        return self._clean("", final=True)

    def _clean(self, piece: str, *, final: bool) -> str:
        text = self._without_escapes(self._joined(self._raw + piece, final=final), final=final)
        text = self._without_joiners(self._joiner + text.translate(CHARACTERS), final=final)
        text = self._with_few_marks(text)
        return self._spaces.fold(self._without_tokens(self._token + text, final=final))

    def _joined(self, text: str, *, final: bool) -> str:
        text, self._raw = join_surrogates(text)
        if final:
            text, self._raw = text + self._raw, ""
        return text

    def _without_escapes(self, text: str, *, final: bool) -> str:
        if not any(sign in text for sign in _ESCAPES):
            return text
        if final:
            return _WHOLE_ESCAPE.sub("", text)
        parts, place = [], 0
        for match in _GROWING_ESCAPE.finditer(text):
            parts.append(text[place : match.start()])
            place = match.end()
            if match["prefix"] is not None:
                self._raw = match["prefix"] + self._raw
        return "".join(parts) + text[place:]

    def _without_joiners(self, text: str, *, final: bool) -> str:
        self._joiner = ""
        if _JOINERS.search(text) is None:
            self._before = text[-1:] or self._before
            return text
        parts, place = [], 0
        for match in _JOINERS.finditer(text):
            parts.append(text[place : match.start()])
            before = text[match.start() - 1] if match.start() else self._before
            place = match.end()
            if _JOINING.match(before):
                parts.append(match.group()[0])
            elif ZWJ in match.group() and _PICTURE.match(before):
                if place < len(text):
                    parts.append(ZWJ if _PICTURE.match(text, place) else "")
                elif not final:
                    self._joiner = ZWJ
        cleaned = "".join(parts) + text[place:]
        self._before = cleaned[-1:] or self._before
        return cleaned

    def _with_few_marks(self, text: str) -> str:
        if _MAYBE_MARK.search(text) is None:
            self._marks = 0 if text else self._marks
            return text
        kept = []
        for character in text:
            is_mark = character > "\u02ff" and unicodedata.category(character).startswith("M")
            self._marks = self._marks + 1 if is_mark else 0
            if self._marks <= MOST_MARKS:
                kept.append(character)
        return "".join(kept)

    def _without_tokens(self, text: str, *, final: bool) -> str:
        self._token = ""
        if self._tokens.first.isdisjoint(text):
            return text
        parts, place = [], 0
        for found in self._tokens.find(text, final=final):
            parts.append(text[place : found.start])
            place = found.end
            if found.complete:
                parts.append(" ")
            else:
                self._token = text[found.start :]
        return "".join(parts) + text[place:]


class _Spaces:
    """Folds white space; the run at the end of a piece goes on in the next one."""

    def __init__(self) -> None:
        self._breaks = 0
        """Line breaks of the run so far."""
        self._after_return = False
        self._spaced = self._ended = True
        """The run so far has given a space, and ended a paragraph; at the beginning of a text neither is wanted."""

    def fold(self, text: str) -> str:
        """``text`` with its runs of white space folded."""
        if _ODD_SPACE.search(text) is None and not text.startswith(" "):
            if text:
                self._begin_run(spaced=text.endswith(" "))
            return text
        parts, place = [], 0
        for match in _WHITE_SPACE.finditer(text):
            if match.start() > place or match.start():
                self._begin_run()
            parts += [text[place : match.start()], self._run(match.group())]
            place = match.end()
        if place < len(text):
            self._begin_run()
        return "".join(parts) + text[place:]

    def _begin_run(self, *, spaced: bool = False) -> None:
        self._breaks, self._after_return, self._spaced, self._ended = 0, False, spaced, False

    def _run(self, run: str) -> str:
        space = "" if self._spaced else " "
        self._spaced = True
        breaks = run.replace("\r\n", "\n")
        if self._after_return and breaks.startswith("\n"):
            breaks = breaks[1:]
        self._after_return = run.endswith("\r")
        self._breaks += len(_LINE_BREAK.findall(breaks)) + breaks.count("\u2029")
        if self._breaks < 2 or self._ended:
            return space
        self._ended = True
        return space + PARAGRAPH_END


def clean(text: str, tokens: ControlTokens | None = None) -> str:
    """A whole text, cleaned and stripped."""
    cleaner = TextCleaner(tokens)
    return (cleaner.feed(text) + cleaner.finish()).strip()


def paragraphs(cleaned: str) -> Iterator[str]:
    """The paragraphs of a clean text, stripped."""
    return map(str.strip, cleaned.split(PARAGRAPH_END))


def join_surrogates(text: str) -> tuple[str, str]:
    """``text`` with its surrogate pairs joined, and the half at its end that may yet find the other one."""
    if _SURROGATE.search(text) is None:
        return text, ""
    half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
    whole = text[: len(text) - len(half)].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return whole, half
