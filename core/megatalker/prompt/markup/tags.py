"""Short tags in square brackets: ``[pause:400ms]``, ``[mark:name]``, ``[voice:name]`` and ``[/voice]``.

Every other bracket is text. A backslash in front of a bracket makes it text, too.
"""

import re
from collections.abc import Collection

from megatalker.errors import suggest
from megatalker.prompt.markup.parts import LONGEST_NAME, Part, PauseBudget, TextPlace, checked_name

__all__ = ["TagReader"]

_NAMES = ("pause:", "mark:", "voice:", "/voice")
STYLES = ("whisper", "whispering", "shout", "shouting", "excited", "sad", "angry", "laughing", "cheerful", "calm")
"""Tags of other software that ask for a tone. They are refused: read aloud, they would be a surprise."""
_WHOLE = re.compile(
    r"\[(?:(?P<name>pause|mark|voice):(?P<value>[^\[\]]*)|(?P<back>/voice)|(?P<style>" + "|".join(STYLES) + r"))\]",
    re.I,
)
_STOP = re.compile(r"\\\[?|\[")
LONGEST_TAG = LONGEST_NAME + 16


class TagReader:
    """Reads a text with tags; see :class:`~megatalker.prompt.markup.parts.MarkupReader`.

    Args:
        voices: names that ``[voice:...]`` may have.
    """

    def __init__(self, voices: Collection[str]) -> None:
        self._voices, self._pauses = voices, PauseBudget()
        self._held = ""
        """A backslash, or the beginning of a tag."""
        self._place = TextPlace(1, 1)
        """The end of what has been read."""

    def feed(self, text: str) -> list[Part]:
        return self._read(text, final=False)

    def finish(self) -> list[Part]:
        return self._read("", final=True)

    def _read(self, piece: str, *, final: bool) -> list[Part]:
        text, self._held = self._held + piece, ""
        parts: list[Part] = []
        said: list[str] = []
        at = 0
        while at < len(text):
            stop = _STOP.search(text, at)
            end = len(text) if stop is None else stop.start()
            said.append(text[at:end])
            self._place = self._place.after(text[at:end])
            if stop is None:
                break
            at, found = end, stop.group()
            if found == "\\[":
                said.append("[")
                self._place = self._place.after(found)
                at = stop.end()
                continue
            if found == "[" and (final or len(text) - at > LONGEST_TAG or "]" in text[at : at + LONGEST_TAG]):
                match = _WHOLE.match(text, at, at + LONGEST_TAG)
                if match is not None:
                    self._say(said, parts)
                    parts.append(self._part(match))
                    self._place = self._place.after(match.group())
                    at = match.end()
                    continue
            elif not final and (stop.end() == len(text) if found == "\\" else _may_be_tag(text[at:])):
                self._held = text[at:]
                break
            self._require_text(text[at : at + LONGEST_TAG])
            said.append(found)
            self._place = self._place.after(found)
            at = stop.end()
        self._say(said, parts)
        return parts

    def _say(self, said: list[str], parts: list[Part]) -> None:
        text = "".join(said)
        said.clear()
        if text:
            parts.append(Part("text", text))
            if any(map(str.isalnum, text)):
                self._pauses.spoken()

    def _require_text(self, beginning: str) -> None:
        """Refuse a bracket that can only be meant as a tag."""
        for name in _NAMES[:3]:
            if beginning[1:].lower().startswith(name):
                raise self._place.error(
                    f"the tag [{name} does not end; expected ] after at most {LONGEST_NAME} characters, or \\[ for a "
                    "bracket that is spoken text"
                )

    def _part(self, match: re.Match[str]) -> Part:
        name, value, place = match["name"], match["value"], self._place
        if match["style"]:
            raise place.error(
                f"the tag {match.group()} asks for a tone, which cannot change within a text; use the option instruct, "
                "or write \\[ for a bracket that is spoken text"
            )
        if match["back"]:
            return Part("voice")
        name = name.lower()
        if name == "pause":
            return self._pauses.take(value, place)
        if name == "mark":
            return Part("mark", checked_name("the mark", value.strip(), place))
        return Part("voice", known_voice(value.strip(), self._voices, place))


def _may_be_tag(beginning: str) -> bool:
    """Whether a tag may begin like this, which holds no closing bracket."""
    folded = beginning[1:].lower()
    names = (*_NAMES, *STYLES)
    return any(name.startswith(folded) for name in names) or (folded.startswith(_NAMES[:3]) and "[" not in folded)


def known_voice(name: str, voices: Collection[str], place: TextPlace) -> str:
    """Return the name of a voice of the text.

    Raises:
        MarkupError: there is no such voice.
    """
    folded = name.casefold()
    for voice in voices:
        if voice.casefold() == folded:
            return voice
    raise place.error(f"unknown voice {name!r:.80}; the option cast names voices{suggest(name, list(voices))}")
