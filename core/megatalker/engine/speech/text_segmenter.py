"""The text of one utterance, cut into segments: each is spoken by a decoder stream of its own.

Text given at once is cut by :func:`megatalker.prompt.sentences.split_sentences`: as many whole sentences as fit. Text
that arrives bit by bit is spoken before its sentences are known, so its segment ends at the first sentence end at or
after ``max_chars``, or at the first space from twice as many, or anywhere from four times, whichever comes first. That
needs one character of look-ahead and nothing else: it does not depend on how the text was split into pieces. Up to
``max_chars`` both ways are the same. In clean text, the end of a paragraph ends a segment of any length, both ways.

End of speech ends the decoder stream, as it officially does. It is not held back while text is still to come: that
would change codes. What the stream had not read by then is not lost either: it becomes a segment of its own, or the
whole segment is spoken once more (:mod:`megatalker.engine.endings`). Segments without a letter or digit are not spoken.
"""

import unicodedata
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from megatalker.engine.speech.joints import Joint
from megatalker.engine.speech.word_times import letters
from megatalker.prompt.markup.controls import ControlReader
from megatalker.prompt.markup.parts import Part
from megatalker.prompt.markup.prosody import Prosody
from megatalker.prompt.sentences import split_sentences
from megatalker.prompt.text import IncrementalTokenizer, speakable

_STOPS, _CLOSERS = frozenset(".!?…"), frozenset("\"'”’»)]")  # noqa: RUF001
"""End a sentence where words are separated by spaces: stops, then maybe closers, then white space."""
_WIDE_STOPS, _WIDE_CLOSERS = frozenset("。！？｡"), frozenset("”’」』）》")  # noqa: RUF001
"""End one where they are not: stops, then maybe closers, then anything else."""
_SPACE_FACTOR = 2  # not tuned: a bound of a segment
"""A segment that found no end of a sentence ends at a space from this many times ``max_chars``."""
_HARD_FACTOR = 4  # not tuned: a bound of a segment
"""A segment that found no space either ends anywhere from this many times ``max_chars``."""


class _CutFinder:
    """Finds where a segment of arriving text ends; looks at each character once."""

    __slots__ = ("_after_blank", "_after_stop", "_after_wide_stop", "_max_chars", "_place")

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._place = 0
        """Characters of the segment so far, leading white space included."""
        self._after_blank = True
        self._after_stop = self._after_wide_stop = False

    def find(self, text: str) -> int | None:
        """Return the index in ``text`` at which the segment ends; ``None``: all of ``text`` belongs to the segment."""
        for index, character in enumerate(text):
            if self._ends_before(character):
                return index
            self._place += 1
            self._after_blank = character.isspace()
            self._after_stop = character in _STOPS or (self._after_stop and character in _CLOSERS)
            self._after_wide_stop = character in _WIDE_STOPS or (self._after_wide_stop and character in _WIDE_CLOSERS)
        return None

    def _ends_before(self, character: str) -> bool:
        place, least = self._place, self._max_chars
        if place < least:
            return False
        if place >= least * _HARD_FACTOR:
            return True
        if character.isspace():
            at_line_end = character == "\n" and not self._after_blank
            if self._after_stop or at_line_end or (place >= least * _SPACE_FACTOR and not self._after_blank):
                return True
        return self._after_wide_stop and character not in _WIDE_STOPS and character not in _WIDE_CLOSERS


class TextSegment:
    """Text of one decoder stream, and its token ids as far as they are certain.

    Args:
        tokenizer: the checkpoint's.
        cut_finder: knows where the segment ends, for text that arrives bit by bit.
        voice: who speaks it, where the text names a voice.
    """

    def __init__(self, tokenizer: Any, cut_finder: _CutFinder | None = None, voice: str = "") -> None:
        self.voice = voice
        self.lead: Joint | None = None
        """The joint before it, until that is taken."""
        self.text = ""
        self.ids: list[int] = []
        self.complete = False
        self.speakable = False
        """There is a letter or digit in it."""
        self.repeated = False
        """It is spoken for the second time."""
        self._tokenizer, self._cut_finder = tokenizer, cut_finder
        self._incremental = IncrementalTokenizer(tokenizer)

    def take(self, text: str) -> str | None:
        """Append ``text`` up to the end of the segment; returns what follows it, ``None``: the segment goes on."""
        cut = None if self._cut_finder is None else self._cut_finder.find(text)
        self._feed(text if cut is None else text[:cut])
        return None if cut is None else text[cut:]

    def fill(self, text: str, ids: list[int] | None = None) -> None:
        """All of its text, stripped, at once; ``ids`` where it has been tokenised."""
        self.text, self.ids, self.complete = text, self._incremental.whole(text) if ids is None else ids, True
        self.speakable = speakable(text)

    def finish(self) -> None:
        """No text will be appended."""
        if not self.complete:
            self.ids += self._incremental.finish()
            self.complete = True

    def read(self, ids_fed: int) -> tuple[str, str]:
        """The text of the first ``ids_fed`` ids, and the text that follows them."""
        if self.complete and ids_fed >= len(self.ids):
            return self.text, ""
        read: str = self._tokenizer.decode(self.ids[:ids_fed], skip_special_tokens=False)
        start = len(read.rstrip("\ufffd"))  # half a character was read: read it again
        text = unicodedata.normalize("NFC", self.text)  # as the tokenizer does
        return text[:start], text[start:]

    def rest(self, ids_fed: int, said: int | None = None) -> "TextSegment":
        """A new segment with the text that follows the first ``ids_fed`` ids, or of their text the first ``said``
        characters; it ends where this one would have.
        """
        read, follows = self.read(ids_fed)
        said = len(read) if said is None else said
        rest = TextSegment(self._tokenizer, self._cut_finder, self.voice)
        rest._feed(read[said:] + follows)
        return rest

    def _feed(self, text: str) -> None:
        if not self.text:
            text = text.lstrip()
        if text:
            self.text += text
            self.speakable = self.speakable or speakable(text)
            self.ids += self._incremental.feed(text)


class TextSegmenter:
    """Segments of an utterance: the one that is spoken, those that come next, and the one that arriving text goes to.

    Not thread-safe: its owner is the worker, once the request is accepted.

    Args:
        tokenizer: the checkpoint's.
        max_chars: see the module.
        ids_needed: ids that must be known before a segment whose text still arrives can begin, by its voice; one for
            voices that are not there.
        clean: the text is clean (:mod:`megatalker.prompt.cleaning`): each paragraph and control of it ends a segment.
    """

    def __init__(
        self, tokenizer: Any, max_chars: int, ids_needed: Mapping[str, int] | None = None, *, clean: bool = False
    ) -> None:
        self._tokenizer, self._max_chars, self._ids_needed, self._clean = tokenizer, max_chars, ids_needed or {}, clean
        self._controls = ControlReader()
        self._joint: Joint | None = None
        """The joint after the last segment."""
        self.voice = ""
        """The voice of the text that comes next, where the text names a voice."""
        self._coming: deque[TextSegment] = deque()
        self._current: TextSegment | None = None
        self._open: TextSegment | None = None
        """The segment that text is appended to: the current one or the last one coming."""
        self._finished = False
        self.whole = ""
        """The text, where it was given at once."""
        self.characters = 0
        """Characters of all text so far."""
        self.letters_said = 0
        """Letters and digits of the segments that are over."""

    @property
    def coming(self) -> tuple[TextSegment, ...]:
        """Segments that have not begun."""
        return tuple(self._coming)

    @property
    def tail(self) -> Joint | None:
        """The joint after the last of them."""
        return self._joint

    @property
    def current(self) -> TextSegment | None:
        """The segment that is being spoken."""
        return self._current

    @property
    def chars_coming(self) -> int:
        """Characters of the segments that have not begun and hold something to say."""
        return sum(len(segment.text) for segment in self._coming if segment.speakable)

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
        return segment.complete or (segment.speakable and len(segment.ids) >= self._ids_needed.get(segment.voice, 1))

    @property
    def finished(self) -> bool:
        """No text will come."""
        return self._finished

    @property
    def exhausted(self) -> bool:
        """Everything has been spoken, and nothing will come."""
        return self._finished and self._current is None and not self._coming

    def add_whole(self, text: str) -> None:
        """Take the whole text at once, stripped."""
        self.whole = text
        for part in self._parts(text):
            if part.kind == "text":
                for segment in split_sentences(part.value.strip(), self._max_chars):
                    self.add(segment)
            else:
                self._take_control(part)
        self.finish()

    def add(self, text: str, ids: list[int] | None = None) -> None:
        """Append a complete segment, stripped; ``ids`` where it has been tokenised."""
        self.characters += len(text)
        self._append(TextSegment(self._tokenizer, voice=self.voice)).fill(text, ids)
        self._close()

    def join(self, joint: Joint) -> None:
        """Append what markup asks for between what was appended before and what comes next."""
        self._close()
        self._joint = joint if self._joint is None else self._joint.then(joint)

    def feed(self, text: str) -> None:
        """Append a piece of text that arrives bit by bit."""
        for part in self._parts(text):
            if part.kind == "text":
                self.characters += len(part.value)
                self._feed(part.value)
            else:
                self._take_control(part)

    def _parts(self, text: str) -> list[Part]:
        return self._controls.read(text) if self._clean else [Part("text", text)]

    def _feed(self, text: str) -> None:
        rest: str | None = text
        while rest:
            segment = self._open
            if segment is None:
                segment = self._append(TextSegment(self._tokenizer, _CutFinder(self._max_chars), self.voice))
            rest = segment.take(rest)
            if rest is not None:
                self._close()

    def _take_control(self, part: Part) -> None:
        self._close()
        match part.kind:
            case "pause":
                self.join(Joint(int(part.value)))
            case "mark":
                self.join(Joint(marks=((part.value, 0),)))
            case "voice":
                self.voice = part.value
            case "prosody":
                self.join(Joint(prosody=Prosody.decode(part.value)))

    def finish(self) -> None:
        """No text will be appended."""
        self._close()
        self._finished = True

    def take_joint(self) -> Joint | None:
        """Return what markup asks for before anything else is spoken, once; ``None``: nothing, or a segment is being
        spoken.
        """
        if self._current is not None:
            return None
        if self._coming:
            joint, self._coming[0].lead = self._coming[0].lead, None
        else:
            joint, self._joint = self._joint, None
        return joint

    def begin(self) -> None:
        """The upcoming segment is being spoken."""
        self._current = self._coming.popleft()

    def repeat(self) -> None:
        """The current segment's decoder stream ended too early: all of the segment is spoken once more."""
        current, self._current = self._current, None
        if current is None:
            raise RuntimeError("no segment is being spoken")
        current.repeated = True
        self._coming.appendleft(current)

    def end(self, ids_fed: int, said: int | None = None) -> None:
        """The current segment's decoder stream ended after reading ``ids_fed`` ids: the rest is spoken next, with what
        follows the first ``said`` characters of the text that it read.
        """
        current, self._current = self._current, None
        if current is None:
            raise RuntimeError("no segment is being spoken")
        rest = current.rest(ids_fed, said)
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
        segment.lead, self._joint = self._joint, None
        return segment

    def _close(self) -> None:
        segment, self._open = self._open, None
        if segment is None:
            return
        segment.finish()
        if segment is not self._current and not segment.speakable:
            self._coming.pop()  # the open one is the last
            self._joint = segment.lead


@dataclass(slots=True)
class IncomingText:
    """Pieces of one utterance's text, in the order in which they came."""

    pieces: deque[tuple[str, float]] = field(default_factory=deque)
    """Each with the moment when it came."""
    complete: bool = False
    """No piece follows."""
    end_read: bool = False

    @property
    def unread(self) -> bool:
        """There is something to read: text, or its end."""
        return bool(self.pieces) or (self.complete and not self.end_read)

    @property
    def chars(self) -> int:
        """Characters that have not been read."""
        return sum(len(text) for text, _ in self.pieces)

    @property
    def came_at(self) -> float:
        """When the next text came."""
        return self.pieces[0][1]

    def take(self, most: int) -> str:
        """The next characters, as many at most, joined: to cut and tokenise each alone takes five times as long."""
        taken: list[str] = []
        while self.pieces and most > 0:
            text, came_at = self.pieces.popleft()
            taken.append(text[:most])
            if len(text) > most:
                self.pieces.appendleft((text[most:], came_at))
            most -= len(text)
        return "".join(taken)
