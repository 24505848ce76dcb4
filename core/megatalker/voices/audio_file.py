"""Audio files that strangers send: decoded within bounds, by libsndfile, and by PyAV where libsndfile cannot.

Phones and browsers record AAC and Opus in MP4 or WebM, which libsndfile does not read.
"""

import io
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from megatalker.errors import InvalidRequestError, MegatalkerError, UnsupportedError

__all__ = ["MAX_SECONDS", "MIN_SECONDS", "check_channels", "check_length", "check_rate", "decode_audio"]

Samples = NDArray[np.float32]

MIN_SECONDS = 0.5
MAX_SECONDS = 60.0
MIN_RATE, MAX_RATE = 4_000, 384_000
MAX_CHANNELS = 16
MAX_VALUES = 12_000_000
"""Samples of all channels together (48 MB): a minute of stereo at 96 kHz."""
MAX_DECODE_S = 10.0
"""Seconds that PyAV may take. A minute of AAC takes 0.1 s; a file of packets without sound could take much longer."""

FORMATS = "WAV, FLAC, OGG, MP3, M4A, MP4, AAC or WebM"
_CONTAINERS = "mov,matroska,webm,ogg,aac,mp3,wav,flac,amr"
"""FFmpeg's demuxers that may be used. The others include playlists, which name further files and addresses to open."""


class _UnreadableError(Exception):
    """One of the two libraries cannot read the file; says why."""


def decode_audio(source: str | Path | bytes) -> tuple[Samples, int]:
    """Decode an audio file, or its content: float32 ``[samples, channels]``, and the sampling rate in Hz.

    Decoding ends with an error as soon as there is more than a recording may have, however small the file is.

    Raises:
        InvalidRequestError: there is no such file, it is not audio, it is damaged, or it is shorter than 0.5 s, longer
            than 60 s, or has an impossible sampling rate or number of channels.
        UnsupportedError: PyAV is needed and not installed.
    """
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source), len(source), "the reference audio")
    path = Path(source)
    if not path.is_file():
        raise InvalidRequestError(f"no such audio file: {source}; expected the path of a local file")
    try:
        with path.open("rb") as file:
            return _decode(file, path.stat().st_size, str(source))
    except OSError as error:
        raise InvalidRequestError(f"{source} cannot be read: {error.strerror or error}") from error


def _decode(file: Any, size: int, name: str) -> tuple[Samples, int]:
    if not size:
        raise InvalidRequestError(f"{name} is not audio: it is empty (0 bytes); expected {FORMATS}")
    try:
        return _gather(_by_soundfile(file), name)
    except _UnreadableError:
        file.seek(0)
    try:
        import av
    except ImportError:
        raise UnsupportedError(
            f"{name} is not audio that can be read here, expected WAV, FLAC, OGG or MP3; "
            "M4A, MP4, AAC and WebM need PyAV: pip install av, or the extra server"
        ) from None
    try:
        return _gather(_by_av(av, file), name)
    except _UnreadableError as error:
        raise InvalidRequestError(f"{name} is not audio that can be read ({error}); expected {FORMATS}") from error


def _gather(blocks: Iterator[tuple[Samples, int]], name: str) -> tuple[Samples, int]:
    """All blocks, as long as they are not too many. Each is ``[samples, channels]``."""
    found: list[Samples] = []
    samples, rate = 0, 0
    for block, rate in blocks:
        found.append(block)
        samples += len(block)
        check_rate(rate)
        check_channels(block.shape[1])
        if samples > MAX_SECONDS * rate:
            raise InvalidRequestError(
                f"{name} lasts more than {MAX_SECONDS:g} s, expected {MIN_SECONDS:g} to {MAX_SECONDS:g} s; cut it, "
                "3 to 15 s of clear speech is best"
            )
        if samples * block.shape[1] > MAX_VALUES:
            raise InvalidRequestError(
                f"{name} has {block.shape[1]} channels at {rate} Hz, too much for its length; save it as mono at 48 kHz"
            )
    if not samples:
        raise _UnreadableError("it holds no sound, or only the beginning of a file that was cut off")
    check_length(samples, rate)
    return np.concatenate(found), rate


# ---- libsndfile


def _by_soundfile(file: Any) -> Iterator[tuple[Samples, int]]:
    try:
        with soundfile.SoundFile(file) as audio:
            rate, announced = audio.samplerate, audio.frames
            check_rate(rate)
            check_channels(audio.channels)
            if MAX_SECONDS * rate < announced < 1 << 48:  # beyond: unknown, as in a stream
                check_length(announced, rate)
            most = min(int(MAX_SECONDS * rate), MAX_VALUES // audio.channels) + 1
            # at once: the library seeks after each read, which loses samples of MP3
            yield audio.read(most, dtype="float32", always_2d=True), rate
    except MegatalkerError:
        raise
    except soundfile.LibsndfileError as error:
        raise _UnreadableError(error.error_string) from error
    except (TypeError, ValueError) as error:
        raise _UnreadableError("its format is unknown") from error


# ---- PyAV


def _by_av(av: ModuleType, file: Any) -> Iterator[tuple[Samples, int]]:
    decoded, rate = 0, 0
    try:
        with av.open(file, options={"format_whitelist": _CONTAINERS, "protocol_whitelist": ""}) as container:
            stream = container.streams.best("audio")
            if stream is None:
                raise _UnreadableError("it has no audio track")
            rate = stream.rate
            check_rate(rate)
            check_channels(stream.channels)
            duration = 0 if container.duration is None else container.duration / av.time_base
            if duration > MAX_SECONDS:
                check_length(round(duration * rate), rate)
            resampler = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate)
            deadline = time.monotonic() + MAX_DECODE_S
            for packet in container.demux(stream):
                if time.monotonic() > deadline:
                    raise InvalidRequestError("the reference audio takes too long to decode; save it as WAV or FLAC")
                for frame in packet.decode():
                    for even in resampler.resample(frame):
                        block = np.ascontiguousarray(even.to_ndarray().T)
                        decoded += len(block)
                        yield block, rate
    except MegatalkerError:
        raise
    except (av.FFmpegError, ValueError, EOFError, NotImplementedError) as error:
        if decoded:
            raise _damaged(decoded, rate) from error
        raise _UnreadableError("no decoder knows it, or it was cut off") from error


def _damaged(decoded: int, rate: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"the reference audio cannot be decoded beyond {decoded / rate:.1f} s: it is damaged or was cut off; "
        "send the whole file"
    )


# ---- limits


def check_length(samples: int, rate: int) -> None:
    """Refuse a recording shorter than 0.5 s or longer than 60 s, with ``InvalidRequestError``."""
    check_rate(rate)
    seconds = samples / rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        remedy = "record more" if seconds < MIN_SECONDS else "cut it"
        raise InvalidRequestError(
            f"the reference audio lasts {seconds:.2f} s, expected {MIN_SECONDS:g} to {MAX_SECONDS:g} s; {remedy}, "
            "3 to 15 s of clear speech is best"
        )


def check_channels(channels: int) -> None:
    """Refuse a recording without channels, or with more than 16, with ``InvalidRequestError``."""
    if not channels:
        raise InvalidRequestError("the reference audio has no channels, expected at least one")
    if channels > MAX_CHANNELS:
        raise InvalidRequestError(
            f"the reference audio has {channels} channels, expected at most {MAX_CHANNELS}; save it as mono"
        )


def check_rate(rate: object) -> None:
    """Refuse a sampling rate that is not an integer from 4000 to 384000 Hz, with ``InvalidRequestError``."""
    if isinstance(rate, bool) or not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidRequestError(
            f"the sampling rate is {rate!r}, expected an integer from {MIN_RATE} to {MAX_RATE} Hz"
        )
