"""Formats of files, and which of them is meant."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal

from megatalker.errors import InvalidRequestError


class Format(StrEnum):
    """Formats of files; standard output takes the first four."""

    WAV = "wav"
    PCM = "pcm"
    MULAW = "pcm_mulaw"
    ALAW = "pcm_alaw"
    MP3 = "mp3"
    FLAC = "flac"
    OPUS = "opus"
    AAC = "aac"
    M4A = "m4a"


STREAMED = (Format.WAV, Format.PCM, Format.MULAW, Format.ALAW)
BARE: Mapping[Format, Literal["s16le", "pcm_mulaw", "pcm_alaw"]] = {
    Format.PCM: "s16le",
    Format.MULAW: "pcm_mulaw",
    Format.ALAW: "pcm_alaw",
}
"""Samples and nothing else: the same formats in the words of :mod:`megatalker.serving.samples`."""
OPUS_RATES = (8_000, 16_000, 24_000, 48_000)
_ENDINGS = {
    **{f".{known}": known for known in Format if known not in (Format.MULAW, Format.ALAW)},
    ".wave": Format.WAV,
    ".raw": Format.PCM,
    ".ogg": Format.OPUS,
    ".ulaw": Format.MULAW,
    ".alaw": Format.ALAW,
}


def choose_format(out: str | None, asked: Format | None) -> Format:
    """Return the format that is asked for, else the one that the file's ending names, else WAV.

    Raises:
        InvalidRequestError: standard output cannot take it, the ending names no format, or names another one.
    """
    if out == "-":
        if asked not in (None, *STREAMED):
            raise InvalidRequestError(
                f"standard output takes {', '.join(STREAMED)}, not {asked}; give --out a file name"
            )
        return asked or Format.WAV
    ending = Path(out or "").suffix.lower()
    named = _ENDINGS.get(ending)
    if asked is None:
        if named is None and ending:
            raise InvalidRequestError(
                f"the ending {ending!r} of {out} names no format that can be written; expected one of "
                f"{', '.join(_ENDINGS)}, or say --format wav"
            )
        return named or Format.WAV
    if named not in (None, asked):
        raise InvalidRequestError(f"--format {asked} and the ending of {out} differ; leave --format out, or rename it")
    return asked


def choose_rate(kind: Format, asked: int | None) -> int:
    """Return the rate in Hz of a file in this format, for which this one is asked.

    Raises:
        InvalidRequestError: the format has no such rate.
    """
    from megatalker.serving.samples import SAMPLE_RATES, default_rate

    rates = OPUS_RATES if kind is Format.OPUS else SAMPLE_RATES
    if asked is not None and asked not in rates:
        raise InvalidRequestError(f"--sample-rate is {asked}: {kind} takes {', '.join(map(str, rates))}")
    return asked or default_rate(kind)
