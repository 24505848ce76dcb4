"""SSML, W3C's Speech Synthesis Markup Language, by expat: without entities of its own, and nothing from outside.

A text may be a fragment: without ``<speak>`` around it, it is read as if it had that. A tag is read when it is
complete, so that expat sees each character once.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from xml.parsers import expat

from megatalker.errors import InvalidRequestError, MarkupError, suggest
from megatalker.prompt.cleaning import join_surrogates
from megatalker.prompt.markup.parts import Part, PauseBudget, TextPlace, checked_name
from megatalker.prompt.markup.prosody import ATTRIBUTES as PROSODY_ATTRIBUTES
from megatalker.prompt.markup.prosody import PLAIN
from megatalker.prompt.markup.say_as import KINDS, SayAs
from megatalker.prompt.markup.tags import known_voice

__all__ = ["SsmlReader"]

MOST_DEPTH = 32
"""Elements within one another."""
LONGEST_TOKEN = 1024
"""Characters of a tag, comment or section of character data."""
LONGEST_ENTITY = 32
LONGEST_SPOKEN = 256
"""Characters of what ``<say-as>`` reads."""

_STRENGTHS = {"none": "0ms", "x-weak": "100ms", "weak": "250ms", "medium": "500ms", "strong": "1s", "x-strong": "1.5s"}
_REFUSED = {
    "phoneme": "the model reads letters and knows no phonemes; write a respelling with <sub alias>",
    "emphasis": "the model takes no emphasis on single words; use the option instruct where the checkpoint has it",
    "audio": "nothing is loaded from outside; play the audio between two utterances",
    "lexicon": "nothing is loaded from outside; use the option lexicon",
    "lang": "the language is that of the request; use the option language",
}
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "speak": ("version", "xml:lang", "xml:base", "xsi:schemaLocation", "onlangfailure"),
    "p": ("xml:lang", "xml:id"),
    "s": ("xml:lang", "xml:id"),
    "break": ("time", "strength"),
    "sub": ("alias",),
    "say-as": ("interpret-as", "format", "detail"),
    "mark": ("name",),
    "voice": ("name", "xml:lang"),
    "prosody": (*PROSODY_ATTRIBUTES, "xml:lang"),
}
_HOLDS_TEXT = ("sub", "say-as")
"""Elements that hold text alone."""
_EMPTY = ("break", "mark")
_SECTIONS = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"))
_BEGINNING = re.compile("[<&]")
_ENTITY = re.compile(r"&[\w#]*")
_TAG = re.compile(r"<(?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*+")
"""Up to what ends it: a closing bracket, or another opening one, which is a fault."""
_BLANK = "\ufeff \t\r\n"
_FORBIDDEN = re.compile("[\0\ud800-\udfff]")


class SsmlReader:
    """Reads a text in SSML; see :class:`~megatalker.prompt.markup.parts.MarkupReader`.

    Args:
        voices: names that ``<voice>`` may have.
        say_as: writes out what ``<say-as>`` holds, in the request's language.
    """

    def __init__(self, voices: Collection[str], say_as: SayAs) -> None:
        self._voices, self._say_as, self._pauses = voices, say_as, PauseBudget()
        self._held = ""
        """The beginning of a tag or entity; at the beginning of the text, white space, too."""
        self._half = ""
        self._begun = self._fragment = self._over = False
        self._closed: TextPlace | None = None
        """The end of the element ``<speak>``, once it has been read."""
        self._place = TextPlace(1, 1)
        """The end of the text that expat was given."""
        self._lines_before = 0
        """Lines that the caller's text has more than expat's."""
        self._parts: list[Part] = []
        self._open: list[str] = []
        self._speakers: list[str] = [""]
        self._prosodies = [PLAIN]
        """That of the whole text, and of each open element that sets one."""
        self._prosody = PLAIN
        """That of the last part."""
        self._inner: list[str] | None = None
        """Text of the open element that holds text alone."""
        self._spoken: tuple[dict[str, str], TextPlace] | None = None
        """Attributes and place of that element."""
        self._parser = self._new_parser()

    def _new_parser(self) -> expat.XMLParserType:
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = False
        handlers: dict[str, Callable[..., Any]] = {
            "StartElementHandler": self._start,
            "EndElementHandler": self._end,
            "CharacterDataHandler": self._say,
            "StartDoctypeDeclHandler": lambda *_: self._refuse("a document type, which may define entities"),
            "EntityDeclHandler": lambda *_: self._refuse("an entity declaration"),
            "ExternalEntityRefHandler": lambda *_: self._refuse("an external entity"),
            "ProcessingInstructionHandler": lambda *_: self._refuse("a processing instruction"),
        }
        for name, handler in handlers.items():
            setattr(parser, name, handler)
        return parser

    # ---- text in pieces

    def feed(self, text: str) -> list[Part]:
        text, self._half = join_surrogates(self._half + text)
        text = self._held + text
        if not self._begun:
            beginning = text.lstrip(_BLANK)
            if not beginning or any(root.startswith(beginning) for root in ("<speak", "<?xml")):
                self._held = text
                self._require_short()
                return []
            text = self._begin(text)
        end = _complete(text)
        self._held = text[end:]
        self._parse(text[:end])
        self._require_short()
        return self._take()

    def finish(self) -> list[Part]:
        held, self._held = self._held + self._half, ""
        if not self._begun:
            held = self._begin(held)
        self._parse(held)
        if len(self._open) > (1 if self._fragment else 0):
            raise self._place.error(f"the text ends within <{self._open[-1]}>; expected </{self._open[-1]}>")
        self._over = True
        self._parse_final("</speak>" if self._fragment else "")
        return self._take()

    def _begin(self, text: str) -> str:
        """Find out how the text begins; returns what expat reads of it."""
        self._begun, beginning = True, text.lstrip(_BLANK)
        if re.match(r"<\?xml\s", beginning):  # expat wants nothing in front of it
            before = text[: len(text) - len(beginning)]
            self._place = self._place.after(before)
            self._lines_before = before.count("\n")
            return beginning
        self._fragment = re.match(r"<speak[\s/>]", beginning) is None
        if self._fragment:
            self._lines_before = -1
            self._parser.Parse("<speak>\n", False)
        return text

    def _parse(self, text: str) -> None:
        found = _FORBIDDEN.search(text)
        good = text if found is None else text[: found.start()]
        try:
            self._parser.Parse(good, False)
        except expat.ExpatError as error:
            raise self._malformed(error) from error
        self._place = self._place.after(good)
        if found is not None:
            raise self._place.error("a NUL character or half of a surrogate pair, expected Unicode text; remove it")

    def _parse_final(self, text: str) -> None:
        try:
            self._parser.Parse(text, True)
        except expat.ExpatError as error:
            raise self._malformed(error) from error

    def _malformed(self, error: expat.ExpatError) -> MarkupError:
        if self._closed is not None:  # whichever fault expat finds in it
            return self._closed.error("<speak> ends here and more follows, expected the end of the text")
        return TextPlace(error.lineno + self._lines_before, error.offset + 1).error(
            f"this is no well-formed SSML ({expat.ErrorString(error.code)}); write &lt; and &amp; for < and & that are "
            "spoken text"
        )

    def _require_short(self) -> None:
        limit = LONGEST_ENTITY if self._held.startswith("&") else LONGEST_TOKEN
        if len(self._held) > limit:
            raise self._place.error(f"{self._held.strip()[:20]!r} begins what does not end within {limit} characters")

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    @property
    def _here(self) -> TextPlace:
        """The beginning of the element that expat is reading."""
        return TextPlace(self._parser.CurrentLineNumber + self._lines_before, self._parser.CurrentColumnNumber + 1)

    def _refuse(self, what: str) -> None:
        raise self._here.error(f"{what} is not taken; leave it out")

    # ---- elements

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        place = self._here
        self._check_nesting(name, place)
        self._check_attributes(name, attributes, place)
        self._open.append(name)
        match name:
            case "p" | "s":
                self._parts.append(Part("end"))
            case "break":
                self._break(attributes, place)
            case "mark":
                mark = checked_name("the mark", _required(attributes, "name", name, place), place)
                self._parts.append(Part("mark", mark))
            case "voice":
                voice = known_voice(_required(attributes, "name", name, place), self._voices, place)
                self._speakers.append(voice)
                self._parts.append(Part("voice", voice))
            case "prosody":
                self._prosodies.append(self._prosodies[-1].within(attributes, place))
            case "sub" | "say-as":
                _required(attributes, "alias" if name == "sub" else "interpret-as", name, place)
                self._inner, self._spoken = [], (attributes, place)
                if name == "say-as" and attributes["interpret-as"] not in KINDS:
                    raise place.error(f"interpret-as is {attributes['interpret-as']!r:.40}, expected {_listed(KINDS)}")

    def _end(self, name: str) -> None:
        self._open.pop()
        if not self._open:
            if self._fragment and not self._over:
                raise self._here.error("</speak> stands here, and no <speak> before it; leave it out")
            self._closed = self._here
        match name:
            case "p" | "s":
                self._parts.append(Part("end"))
            case "voice":
                self._speakers.pop()
                self._parts.append(Part("voice", self._speakers[-1]))
            case "prosody":
                self._prosodies.pop()
                self._set_prosody()
            case "sub" | "say-as":
                self._set_prosody()
                self._parts.append(Part("literal", self._spoken_form(name)))
                self._pauses.spoken()

    def _set_prosody(self) -> None:
        """Let the text that follows have the prosody of the element that it stands in."""
        prosody = self._prosodies[-1]
        if prosody != self._prosody:
            self._prosody = prosody
            self._parts.append(Part("prosody", prosody.encode()))

    def _spoken_form(self, name: str) -> str:
        assert self._spoken is not None, "the element has begun"
        inner, (attributes, place) = "".join(self._inner or ()), self._spoken
        self._inner = self._spoken = None
        if name == "sub":
            return attributes["alias"]
        try:
            return self._say_as(attributes["interpret-as"], attributes.get("format", ""), " ".join(inner.split()))
        except InvalidRequestError as error:
            raise place.error(str(error)) from error

    def _say(self, text: str) -> None:
        if self._inner is None:
            if any(map(str.isalnum, text)):
                self._pauses.spoken()
            self._set_prosody()
            self._parts.append(Part("text", text))
            return
        self._inner.append(text)
        if self._open[-1:] == ["say-as"] and self._spoken is not None and sum(map(len, self._inner)) > LONGEST_SPOKEN:
            raise self._spoken[1].error(f"<say-as> holds more than {LONGEST_SPOKEN} characters; read less in one")

    def _check_nesting(self, name: str, place: TextPlace) -> None:
        if name in _REFUSED:
            raise place.error(f"<{name}> is not spoken: {_REFUSED[name]}")
        if name not in _ATTRIBUTES:
            raise place.error(f"unknown element <{name[:40]}>{suggest(name, list(_ATTRIBUTES))}")
        if (name == "speak") != (not self._open):
            expected = "<speak> around everything" if name != "speak" else "one <speak> around everything"
            raise place.error(f"<{name}> stands here, expected {expected}")
        if self._open and self._open[-1] in (*_HOLDS_TEXT, *_EMPTY):
            raise place.error(f"<{name}> stands within <{self._open[-1]}>, expected no element there")
        if len(self._open) >= MOST_DEPTH:
            raise place.error(f"elements stand within one another {MOST_DEPTH + 1} deep, expected at most {MOST_DEPTH}")

    def _check_attributes(self, name: str, attributes: Mapping[str, str], place: TextPlace) -> None:
        for attribute, value in attributes.items():
            if attribute == "xmlns" or attribute.startswith("xmlns:"):
                continue
            if attribute not in _ATTRIBUTES[name]:
                raise place.error(
                    f"<{name}> has an attribute {attribute[:40]!r}, expected {_listed(_ATTRIBUTES[name])}"
                )
            if attribute == "xml:lang" and not self._say_as.is_language(value):
                raise place.error(
                    f"xml:lang is {value!r:.40}, which is not the language of the request; a text has one language, "
                    "which the option language names"
                )

    def _break(self, attributes: Mapping[str, str], place: TextPlace) -> None:
        strength = attributes.get("strength", "medium")
        if strength not in _STRENGTHS:
            raise place.error(f"strength is {strength!r:.40}, expected {_listed(tuple(_STRENGTHS))}")
        pause = self._pauses.take(attributes.get("time", _STRENGTHS[strength]), place)
        if pause.value != "0":
            self._parts.append(pause)


def _required(attributes: Mapping[str, str], attribute: str, element: str, place: TextPlace) -> str:
    value = attributes.get(attribute, "").strip()
    if not value:
        raise place.error(f"<{element}> has no attribute {attribute!r}; expected <{element} {attribute}=...>")
    return value


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"


def _complete(text: str) -> int:
    """Return where the last token begins that is not complete, or the end."""
    at = 0
    while True:
        found = _BEGINNING.search(text, at)
        if found is None:
            return len(text)
        end = _token_end(text, found.start())
        if end is None:
            return found.start()
        at = end


def _token_end(text: str, at: int) -> int | None:
    """Return where a tag, entity or comment ends, or where it turns out to be none, which expat finds, too."""
    if text[at] == "&":
        match = _ENTITY.match(text, at)
        end = at if match is None else match.end()
        return end + 1 if end < len(text) and end <= at + LONGEST_ENTITY else None
    for begin, close in _SECTIONS:
        if text.startswith(begin, at):
            end = text.find(close, at + len(begin), at + LONGEST_TOKEN)
            return end + len(close) if end >= 0 else None
        if begin.startswith(text[at:]):
            return None
    match = _TAG.match(text, at, at + LONGEST_TOKEN)
    end = at if match is None else match.end()
    if text[end : end + 1] in ("'", '"'):  # a quotation that does not end, or holds the beginning of a tag
        end = text.find("<", end, at + LONGEST_TOKEN)
    return end + 1 if end >= 0 and text[end : end + 1] in ("<", ">") else None
