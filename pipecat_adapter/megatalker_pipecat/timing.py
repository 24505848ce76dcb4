"""When each word is spoken: an estimate from the text, its progress and the length of the audio.

The model says no word times. What is known is how much audio there is, which text it was made from, and, at the end of
an utterance, how long all of it took. Words are laid out along the audio at the pace of the voice, which is learned
from one utterance to the next; a word is reported once there is audio for it, and never before its text was there.
At the end, words that are left share the audio that is left. Expect errors of some tenths of a second inside an
utterance, and none at its ends.
"""

from dataclasses import dataclass

from megatalker.prompt.cleaning import join_surrogates
from megatalker_pipecat.words import Piece, cut

USUAL_PACE = 0.062
"""Seconds a letter, before anything was heard: about 150 English words a minute."""
LEARNING = 0.5
"""Weight of the newest utterance."""
ENOUGH_UNITS = 10.0
"""Shorter utterances say little about the pace."""
LONGEST_WORD = 256
"""Characters that wait for the end of their word at most; they are looked at again with each piece."""
SLOWEST, FASTEST = 3.0, 1 / 3
"""Bounds of the pace, times the usual one."""


class Pace:
    """How fast a voice speaks, shared by the utterances of a session."""

    def __init__(self) -> None:
        self.seconds_per_unit = USUAL_PACE

    def learn(self, units: float, seconds: float) -> None:
        """An utterance of ``units`` took ``seconds``."""
        if units >= ENOUGH_UNITS and seconds > 0:
            heard = min(max(seconds / units, FASTEST * USUAL_PACE), SLOWEST * USUAL_PACE)
            self.seconds_per_unit += LEARNING * (heard - self.seconds_per_unit)


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word and when it begins, in seconds from the start of the utterance's audio."""

    text: str
    begins_s: float
    joined: bool


class WordClock:
    """Lays the words of one utterance along its audio."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._half = ""
        """Half a character, whose other half may follow."""
        self._tail, self._joined = "", False
        """Text not yet cut, and whether it begins within a run without spaces."""
        self._waiting: list[tuple[Piece, float]] = []
        self._last_s, self._last_units = 0.0, 0.0
        """Of the last word reported: when it begins, and how long it takes."""
        self._units = 0.0

    def feed(self, text: str, heard_s: float = 0.0) -> None:
        """More text, cut anywhere; ``heard_s`` seconds of audio had been made without it."""
        text, self._half = join_surrogates(self._half + text)
        self._tail += text
        pieces = cut(self._tail, joined=self._joined)
        if pieces and pieces[-1].end == len(self._tail) and len(pieces[-1].text) < LONGEST_WORD:
            pieces.pop()  # more of it may follow
        if pieces:
            self._tail = self._tail[pieces[-1].end :]
            self._joined = pieces[-1].joined and not self._tail[:1].isspace()
        else:
            self._tail = self._tail[-LONGEST_WORD:]
        self._take(pieces, heard_s)

    def end_text(self, heard_s: float = 0.0) -> None:
        """No text follows."""
        self._take(cut(self._tail, joined=self._joined), heard_s)
        self._tail = ""

    def due(self, audio_s: float) -> list[SpokenWord]:
        """The words that begin within the first ``audio_s`` seconds and were not reported before."""
        words = []
        while self._waiting:
            piece, not_before_s = self._waiting[0]
            begins_s = max(self._last_s + self._last_units * self._pace.seconds_per_unit, not_before_s)
            if begins_s >= audio_s:
                break
            self._waiting.pop(0)
            words.append(SpokenWord(piece.text, begins_s, piece.joined))
            self._last_s, self._last_units = begins_s, piece.units
        return words

    def rest(self, audio_s: float) -> list[SpokenWord]:
        """All words that are left; the utterance took ``audio_s`` seconds, from which the pace is learned.

        They share the audio after the beginning of the last word that was reported.
        """
        left = self._last_units + sum(piece.units for piece, _ in self._waiting)
        per_unit = max(0.0, audio_s - self._last_s) / left if left else 0.0
        begins_s = self._last_s + self._last_units * per_unit
        words = []
        for piece, _ in self._waiting:
            words.append(SpokenWord(piece.text, begins_s, piece.joined))
            begins_s += piece.units * per_unit
        self._waiting.clear()
        self._pace.learn(self._units, audio_s)
        return words

    def _take(self, pieces: list[Piece], heard_s: float) -> None:
        self._waiting += [(piece, heard_s) for piece in pieces]
        self._units += sum(piece.units for piece in pieces)
