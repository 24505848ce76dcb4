"""Formats of files, and which of them is meant."""

from enum import StrEnum
from pathlib import Path

from megatalker.errors import InvalidRequestError


class Format(StrEnum):
    """Formats of files; standard output takes the first two."""

    WAV = "wav"
    PCM = "pcm"
    MP3 = "mp3"
    FLAC = "flac"
    OPUS = "opus"
    AAC = "aac"
    M4A = "m4a"


STREAMED = (Format.WAV, Format.PCM)
_ENDINGS = {**{f".{known}": known for known in Format}, ".wave": Format.WAV, ".raw": Format.PCM, ".ogg": Format.OPUS}


def choose_format(out: str | None, asked: Format | None) -> Format:
    """Return the format that is asked for, else the one that the file's ending names, else WAV.

    Raises:
        InvalidRequestError: standard output cannot take it, the ending names no format, or names another one.
    """
    if out == "-":
        if asked not in (None, *STREAMED):
            raise InvalidRequestError(f"standard output takes wav or pcm, not {asked}; give --out a file name")
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
