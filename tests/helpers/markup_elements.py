"""Elements of markup, and what each face must make of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FRAMES = 40
"""Frames of each segment: enough to read all of its text."""
FRAME = 1920
STRETCHED_END = 1200
"""Samples at the end of stretched speech that may be silent: what was made of the rest came early."""


@dataclass(frozen=True)
class Element:
    """A text in markup."""

    markup: str
    text: str
    segments: tuple[str, ...]
    """Texts that the model is given."""
    pause: int = 0
    """Samples of silence after the first segment."""
    marks: tuple[tuple[str, int], ...] = ()
    """Names, and the samples before each."""
    rates: tuple[float, ...] = ()
    """The rate of each segment; all 1 where nothing is said."""
    gain: float = 1.0
    """How much louder the second segment is."""

    @property
    def lengths(self) -> list[int]:
        """Samples of each segment."""
        return [round(FRAMES * FRAME / rate) for rate in self.rates or (1.0,) * len(self.segments)]

    @property
    def samples(self) -> int:
        """Samples of the whole speech."""
        return sum(self.lengths) + self.pause

    def require_pause(self, heard: NDArray[np.float32]) -> None:
        """The speech is as long and as loud as it must be, and silent where it must be and nowhere else."""
        assert len(heard) == self.samples
        if self.gain != 1.0:
            first, second = (np.square(part).mean() ** 0.5 for part in np.split(heard, [self.lengths[0]]))
            assert abs(second / first - self.gain) < 0.1 * self.gain
        most_silent = 200 + sum(STRETCHED_END for rate in self.rates if rate != 1.0)
        silent = np.flatnonzero(np.abs(heard) < 1e-4)
        if not self.pause:
            assert len(silent) < most_silent
            return
        begin = self.lengths[0]
        edge = 48
        assert not heard[begin + edge : begin + self.pause].any()
        assert np.count_nonzero((silent < begin) | (silent >= begin + self.pause)) < most_silent


def elements(speaker: str) -> dict[str, Element]:
    """By name; ``speaker`` is one of the checkpoint, which the cast calls Anna."""
    two, end = ("Ready now.", "Go now."), FRAMES * FRAME
    return {
        "pause tag": Element("tags", "Ready now.[pause:410ms]Go now.", two, 9840),
        "mark tag": Element("tags", "Ready now.[mark:go]Go now.", two, 0, (("go", end),)),
        "voice tag": Element("tags", f"Ready now.[voice:{speaker}]Go now.[/voice]", two),
        "cast tag": Element("tags", "Ready now.[voice:Anna]Go now.", two),
        "escape": Element("tags", r"Say \[pause:1s] now.", ("Say [pause:1s] now.",)),
        "break time": Element("ssml", 'Ready now.<break time="410ms"/>Go now.', two, 9840),
        "break strength": Element("ssml", 'Ready now.<break strength="weak"/>Go now.', two, 6000),
        "p": Element("ssml", "<speak><p>Ready now.</p><p>Go now.</p></speak>", two),
        "s": Element("ssml", "<s>Ready now.</s><s>Go now.</s>", two),
        "sub": Element("ssml", '<sub alias="Ready now">RN</sub>.', ("Ready now.",)),
        "say-as": Element("ssml", '<say-as interpret-as="ordinal">21</say-as> now.', ("twenty-first now.",)),
        "mark": Element("ssml", 'Ready now.<mark name="go"/>Go now.', two, 0, (("go", end),)),
        "mark in a pause": Element(
            "ssml",
            'Ready now.<break time="200ms"/><mark name="go"/><break time="210ms"/>Go now.',
            two,
            9840,
            (("go", end + 4800),),
        ),
        "voice": Element("ssml", f'Ready now.<voice name="{speaker}">Go now.</voice>', two),
        "cast": Element("ssml", 'Ready now.<voice name="anna">Go now.</voice>', two),
        "slow part": Element("ssml", 'Ready now.<prosody rate="80%">Go now.</prosody>', two, rates=(1.0, 0.8)),
        "fast part": Element(
            "ssml",
            '<prosody rate="+25%">Ready now.<mark name="go"/></prosody>Go now.',
            two,
            0,
            (("go", round(end / 1.25)),),
            rates=(1.25, 1.0),
        ),
        "pause in a slow part": Element(
            "ssml",
            '<prosody rate="x-slow">Ready now.<break time="410ms"/>Go now.</prosody>',
            two,
            9840,
            rates=(0.5, 0.5),
        ),
        "parts in parts": Element(
            "ssml",
            '<prosody rate="fast">Ready now.<prosody rate="50%" volume="-6dB">Go now.</prosody></prosody>',
            two,
            rates=(1.5, 0.75),
            gain=10 ** (-6 / 20),
        ),
        "soft part": Element("ssml", 'Ready now.<prosody volume="soft">Go now.</prosody>', two, gain=0.5),
    }


ELEMENTS = tuple(elements("x"))
