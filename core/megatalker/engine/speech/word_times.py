"""When each word is spoken: an estimate from the text, its segments, and the length of the audio.

The model says no word times. What is known is which text a segment has, with which frame its speech begins, and how
much audio there is. Words of the running segment are laid out along its audio at the pace of the voice, which is
learned from one segment to the next; once the segment is over, the words that are left of it share the audio that is
left. A word is reported when all of its audio has been handed out, and never if its segment was not spoken. Expect
errors of some tenths of a second inside a segment, and none at its ends.
"""

import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.options import SpeechOptions
from megatalker.prompt.cleaning import PARAGRAPH_END
from megatalker.prompt.markup.controls import without_controls
from megatalker.voices import Voice

__all__ = ["Word", "WordCutter", "cut", "letters"]

_DIGIT_UNITS = 4.0  # not tuned: a fact of speech
"""A digit is said as a word."""
_SYLLABLE_UNITS = 3.5  # not tuned: a fact of speech
"""A character of a script that writes syllables or words with one character each."""
_PAUSE_UNITS = {",": 3.0, ";": 4.0, ":": 4.0, ".": 6.0, "!": 6.0, "?": 6.0, "。": 6.0}  # not tuned: a fact of speech
_WIDE = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO")
"""Scripts that put no spaces between words, by the beginning of their characters' Unicode names."""


def letters(text: str) -> int:
    """Letters and digits of a text: what is left of it where everything else was cleaned away."""
    return sum(map(str.isalnum, text))


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it stands in the text, punctuation included."""

    text: str
    before: str
    """White space between the previous word and this one."""
    units: float
    """How long it takes to say, in letters."""
    joined: bool
    """It stands in a run without spaces: nothing goes between it and the word after it."""
    end: int
    """Index in the whole text of the character after the word."""


class WordCutter:
    """Finds words in text that comes in pieces, cut anywhere. The work for a character does not depend on the text.

    Punctuation that stands alone belongs to the word after it, and is left out at the end. Where words are not
    separated by spaces (Chinese, Japanese) each character is a word, together with the punctuation that follows it.
    """

    def __init__(self) -> None:
        self._before: list[str] = []
        self._word: list[str] = []
        self._speakable = False
        """There is a letter or digit in the present run without spaces, and in ``_word``."""
        self._wide = False
        """The present run without spaces is of a script that has none."""
        self._read = 0

    def feed(self, text: str) -> list[Word]:
        """Words that are complete with this piece of the text."""
        found = []
        for character in text:
            if character.isspace():
                if self._speakable:
                    found.append(self._take())
                self._wide = False
                (self._word if self._word else self._before).append(character)
            else:
                wide = _is_wide(character)
                self._wide = self._wide or wide
                begins = self._speakable and character.isalnum()
                if begins and self._wide and (wide or not self._word[-1].isascii()):
                    found.append(self._take())
                self._word.append(character)
                self._speakable = self._speakable or character.isalnum()
            self._read += 1
        return found

    def finish(self) -> list[Word]:
        """The last word, where there is one: no text follows."""
        return [self._take()] if self._speakable else []

    def _take(self) -> Word:
        text, before = "".join(self._word), "".join(self._before)
        self._word, self._before, self._speakable = [], [], False
        return Word(text, before, _units(text), self._wide, self._read)


def cut(text: str) -> list[Word]:
    """Words of a text that is complete, in order."""
    cutter = WordCutter()
    return cutter.feed(text) + cutter.finish()


def _is_wide(character: str) -> bool:
    return not character.isascii() and character.isalpha() and unicodedata.name(character, "").startswith(_WIDE)


def _units(word: str) -> float:
    units = 1.0  # the gap to the next word
    for character in word:
        if character.isdigit():
            units += _DIGIT_UNITS
        elif _is_wide(character) or (not character.isascii() and "HANGUL" in unicodedata.name(character, "")):
            units += _SYLLABLE_UNITS
        elif character.isalpha():
            units += 1.0
    return units + _PAUSE_UNITS.get(unicodedata.normalize("NFKC", word[-1])[0], 0.0)


class GrowingText(Protocol):
    """A segment of text that may still grow."""

    text: str


USUAL_PACE = 0.062  # not tuned: a fact of speech
"""Seconds a letter, before anything was heard: about 150 English words a minute."""
LEARNING = 0.5  # tuned, not measured
"""Weight of the newest segment."""
ENOUGH_UNITS = 10.0  # tuned, not measured
"""Shorter segments say little about the pace."""
SLOWEST, FASTEST = 3.0, 1 / 3  # not tuned: a bound of what is believed
"""Bounds of the pace, times the usual one."""
QUIET = 0.01  # not tuned: a fact of speech
"""Level below which audio counts as silence, as a part of full scale: -40 dB."""
PATIENCE_S = 1.0  # not tuned: a bound of what is believed
"""The first word is taken to begin with the first sound, unless that takes longer."""


class Pace:
    """How fast a voice speaks."""

    def __init__(self) -> None:
        self.seconds_per_unit = USUAL_PACE

    def learn(self, units: float, seconds: float) -> None:
        """Speech of ``units`` took ``seconds``."""
        if units >= ENOUGH_UNITS and seconds > 0:
            found = min(max(seconds / units, FASTEST * USUAL_PACE), SLOWEST * USUAL_PACE)
            self.seconds_per_unit += LEARNING * (found - self.seconds_per_unit)


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word and when it is spoken, in seconds from the start of the utterance's audio."""

    text: str
    """The word as it is spoken: a word of the clean text, punctuation included."""
    begins_s: float
    ends_s: float
    before: str = ""
    """Text between the previous word and this one; ``before + text`` of all words is the clean text."""
    joined: bool = False
    """It stands in a run without spaces: nothing goes between it and the word after it."""
    estimated: bool = True
    """No aligner has found it in the audio."""


@dataclass(slots=True)
class BegunSegment:
    """A segment of the text whose speech has begun."""

    letters_before: int
    """Letters and digits of all text before it."""
    segment: GrowingText
    """Grows while its text arrives."""
    begins_s: float
    cut: bool = False
    """It was ended before it had said all of its text."""
    pause_s: float = 0.0
    """Silence before it that markup asked for."""
    _counted: int = 0
    _letters: int = 0

    @property
    def silent_from_s(self) -> float:
        """When the segment before it is over."""
        return self.begins_s - self.pause_s

    def reaches(self, place: int) -> bool:
        """Whether the letter of this number lies before its end."""
        text = self.segment.text
        self._letters += letters(text[self._counted :])
        self._counted = len(text)
        return place < self.letters_before + self._letters


class WordClock:
    """Lays the words of one utterance along its audio."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._cutter = WordCutter()
        self._waiting: deque[tuple[Word, int, float]] = deque()
        """Words not reported, the letters before each, and the audio there was before its text."""
        self._letters = 0
        self._at_s, self._owed_units = 0.0, 0.0
        """A time in the audio, in seconds, and how many units after it the next word begins at the earliest."""
        self._sounding, self._onset_s = False, 0.0
        self._current = -1
        """Number of the segment that the next word belongs to."""
        self._units_said = 0.0
        """Words of the current segment that were reported."""
        self._share: float | None = None
        """Seconds a unit of the current segment, once it is over."""

    def feed(self, text: str, made_s: float = 0.0) -> None:
        """More text, cut anywhere; ``made_s`` seconds of audio had been made without it."""
        self._take(self._cutter.feed(text.replace(PARAGRAPH_END, "\n\n")), made_s)

    def end_text(self, made_s: float = 0.0) -> None:
        """No text follows."""
        self._take(self._cutter.finish(), made_s)

    def hear(
        self,
        pcm: NDArray[np.float32],
        at_s: float,
        segments: Sequence[BegunSegment] = (),  # noqa: ARG002 - aligned clocks look for the ends of segments
    ) -> None:
        """Audio that was handed out, which begins at ``at_s``: words come after its first sound.

        ``segments``: as for :meth:`due`.
        """
        if self._sounding:
            return
        loud = np.flatnonzero(np.abs(pcm) > QUIET)
        if len(loud):
            self._at_s = self._onset_s = at_s + float(loud[0]) / SAMPLE_RATE
        self._sounding = len(loud) > 0 or at_s + len(pcm) / SAMPLE_RATE >= PATIENCE_S

    def due(self, audio_s: float, segments: Sequence[BegunSegment], *, begun: bool = False) -> list[SpokenWord]:
        """The words that end within the first ``audio_s`` seconds and were not reported before.

        Args:
            audio_s: audio that was handed out.
            segments: those that have begun, in order.
            begun: words that begin in that audio, too; their ends are guesses, which later ones may contradict.
        """
        return self._lay_out(audio_s, segments, None, begun=begun) if self._sounding else []

    def rest(self, audio_s: float, segments: Sequence[BegunSegment], *, complete: bool) -> list[SpokenWord]:
        """The words that are left, when the speech is over.

        Args:
            audio_s: audio of the whole utterance.
            segments: as for :meth:`due`.
            complete: everything was spoken. Otherwise words are left out that cannot have been.
        """
        words = self._lay_out(audio_s, segments, audio_s if complete else None, begun=False)
        if complete and self._current == len(segments) - 1 >= 0:
            self._learn(segments[self._current], audio_s)
        self._waiting.clear()
        self._units_said = 0.0
        return words

    def awaited(
        self,
        audio_s: float,  # noqa: ARG002 - as for rest()
        segments: Sequence[BegunSegment],  # noqa: ARG002
        *,
        complete: bool,  # noqa: ARG002
    ) -> "Sequence[Future[list[SpokenWord]]]":
        """Begin what :meth:`rest` should wait for, and return it. Estimates need nothing."""
        return ()

    def stop_aligning(self) -> None:
        """Nothing is waited for any more: words have their estimates from now on."""

    def _lay_out(
        self, audio_s: float, segments: Sequence[BegunSegment], over_s: float | None, *, begun: bool
    ) -> list[SpokenWord]:
        found = []
        while self._waiting and segments:
            word, place, not_before_s = self._waiting[0]
            self._move_on(segments, place)
            segment, last = segments[self._current], self._current == len(segments) - 1
            if last and over_s is None and not segment.reaches(place):
                break  # its segment has not begun
            end_s = over_s if last else segments[self._current + 1].silent_from_s
            begins_s = max(self._at_s, segment.begins_s, not_before_s)
            if end_s is None or segment.cut:
                unit_s = self._pace.seconds_per_unit
                begins_s = max(begins_s, self._at_s + self._owed_units * unit_s)
                ends_s = begins_s + word.units * unit_s
                if end_s is not None and ends_s > end_s:  # the segment was over before, and says nothing more
                    self._waiting.popleft()
                    self._at_s, self._owed_units = end_s, 0.0
                    continue
            else:
                begins_s = min(begins_s, end_s)
                unit_s = self._shared(segments, begins_s, end_s)
                begins_s = min(begins_s + self._owed_units * unit_s, end_s)
                ends_s = min(begins_s + word.units * unit_s, end_s)
            if (begins_s >= audio_s) if begun else (ends_s > audio_s):
                break
            self._waiting.popleft()
            found.append(SpokenWord(word.text, begins_s, ends_s, word.before, word.joined))
            self._at_s, self._owed_units = (begins_s, word.units) if begun else (ends_s, 0.0)
            self._units_said += word.units
        return found

    def _move_on(self, segments: Sequence[BegunSegment], place: int) -> None:
        """To the last segment that begins at or before the letter of this number."""
        while self._current < 0 or (
            self._current + 1 < len(segments) and segments[self._current + 1].letters_before <= place
        ):
            if self._current >= 0:
                self._learn(segments[self._current], segments[self._current + 1].silent_from_s)
            self._current += 1
            self._units_said, self._share, self._owed_units = 0.0, None, 0.0

    def _shared(self, segments: Sequence[BegunSegment], begins_s: float, end_s: float) -> float:
        """Seconds a unit for the words that are left of the current segment, which ends at ``end_s``."""
        if self._share is None:
            following = self._current + 1
            limit = segments[following].letters_before if following < len(segments) else None
            left = self._owed_units
            for word, place, _ in self._waiting:
                if limit is not None and place >= limit:
                    break
                left += word.units
            self._share = max(0.0, end_s - begins_s) / left
        return self._share

    def _learn(self, segment: BegunSegment, ends_s: float) -> None:
        """The current segment is over, and its words have been reported."""
        if not segment.cut:
            self._pace.learn(self._units_said, ends_s - max(segment.begins_s, self._onset_s))

    def _take(self, words: list[Word], made_s: float) -> None:
        for word in words:
            self._waiting.append((word, self._letters, made_s))
            self._letters += letters(word.text)


class Paces:
    """Paces of speakers, as far as they are known.

    Args:
        make: makes the clock of an utterance from the pace of its voice and its language.
    """

    def __init__(self, make: Callable[[Pace, str | None], WordClock]) -> None:
        self._make = make
        self._paces: dict[str | None, Pace] = {}
        """By name; all voices without one share one."""

    def clock(self, asked: SpeechOptions, text: str) -> WordClock | None:
        """Return the clock of an utterance; ``None``: no word times are asked for.

        Args:
            asked: how to speak.
            text: the text that was given at once, with its controls, if any.
        """
        if not asked.word_times:
            return None
        voice = asked.voice
        pace = self._paces.setdefault(voice.speaker if isinstance(voice, Voice) else voice, Pace())
        clock = self._make(pace, asked.language)
        if said := without_controls(text):
            clock.feed(said)
            clock.end_text()
        return clock
