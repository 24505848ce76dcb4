"""The demo voice's speakers: three settings of espeak-ng's Klatt synthesiser, two of them defined here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EspeakSpeaker:
    """One voice of espeak-ng."""

    name: str
    """Name in ``config.json``, in lower case."""
    voice: str
    """Voice of espeak-ng: a language and one of its variants."""
    rate: int
    """Words per minute."""
    pitch: int
    """0 to 99."""
    hertz: tuple[float, float]
    """Lowest and highest pitch, less than an octave apart."""
    gain: float
    """Makes the speakers equally loud."""
    variant: str | None = None
    """The variant's file, where espeak-ng has none of that name."""


_LOW = """language variant
name mt_low
klatt 1
pitch 66 96
formant 0 96 100 100
formant 1 96 100 100
formant 2 96 100 100
formant 3 96 100 100
formant 4 96 100 100
"""
_HIGH = """language variant
name mt_high
klatt 1
gender female
pitch 140 210
formant 0 108 100 100
formant 1 108 100 100
formant 2 108 100 100
formant 3 108 100 100
formant 4 108 100 100
"""

SPEAKERS = (
    EspeakSpeaker("robin", "en-us+klatt", rate=165, pitch=50, hertz=(70, 135), gain=0.8),
    EspeakSpeaker("otto", "en-us+mt_low", rate=160, pitch=50, hertz=(55, 108), gain=0.92, variant=_LOW),
    EspeakSpeaker("mina", "en-us+mt_high", rate=165, pitch=50, hertz=(130, 250), gain=0.56, variant=_HIGH),
)
