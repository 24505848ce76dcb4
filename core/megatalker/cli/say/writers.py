"""Writers of files: WAV and bare samples are written here, the other formats by libsndfile or FFmpeg."""

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from megatalker.cli.say.formats import BARE, Format
from megatalker.errors import InvalidRequestError

Samples = NDArray[np.float32]


class Writer(Protocol):
    """Writes speech to one file."""

    def write(self, samples: Samples) -> None:
        """Append float32 ``[n]``, full scale 1; raises ``OSError``."""

    def close(self) -> None:
        """Complete the file and close it."""


NO_TAGS: Mapping[str, str] = {}


def open_writer(target: Path | BinaryIO, kind: Format, rate: int, tags: Mapping[str, str] = NO_TAGS) -> Writer:
    """Return the writer of a format, which takes samples at 24 kHz and writes them at ``rate`` Hz. ``tags`` are
    ``title``, ``artist``, ``album`` and ``track``, for formats that hold them.

    Raises:
        InvalidRequestError: the package that writes it is not installed.
    """
    from megatalker.checkpoint.config import SAMPLE_RATE

    writer = _writer(target, kind, rate, tags)
    return writer if rate == SAMPLE_RATE else _ResamplingWriter(writer, rate)


def _writer(target: Path | BinaryIO, kind: Format, rate: int, tags: Mapping[str, str]) -> Writer:
    from megatalker.serving.audio import SYNTHETIC, WavWriter

    if kind is Format.WAV:
        return WavWriter(target, rate=rate, comment=SYNTHETIC, tags=tags)
    if kind in BARE:
        return _BareWriter(target, kind)
    assert isinstance(target, Path), "standard output takes no other format"
    return (_FfmpegWriter if kind in (Format.AAC, Format.M4A) else _SndfileWriter)(target, kind, rate, tags)


class _ResamplingWriter:
    """Writes speech at another rate; the last 19 ms may come when the file is closed."""

    def __init__(self, writer: Writer, rate: int) -> None:
        from megatalker.serving.audio import StreamResampler

        self._writer, self._resampler = writer, StreamResampler(rate)
        self._closed = False

    def write(self, samples: Samples) -> None:
        self._writer.write(self._resampler.process(samples))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._writer.write(self._resampler.finish())
        self._writer.close()


class _BareWriter:
    """Writes bare samples, whole after every call."""

    def __init__(self, target: Path | BinaryIO, kind: Format) -> None:
        self._file = target.open("wb") if isinstance(target, Path) else target
        self._kind = BARE[kind]

    def write(self, samples: Samples) -> None:
        from megatalker.serving.samples import to_bytes

        self._file.write(to_bytes(samples, self._kind))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _SndfileWriter:
    """Writes MP3, FLAC and Opus, which are whole when they are closed."""

    def __init__(self, target: Path, kind: Format, rate: int, tags: Mapping[str, str]) -> None:
        import soundfile

        from megatalker.serving.audio import SYNTHETIC

        container, coding = {
            Format.MP3: ("MP3", "MPEG_LAYER_III"),
            Format.FLAC: ("FLAC", "PCM_16"),
            Format.OPUS: ("OGG", "OPUS"),
        }[kind]
        if not soundfile.check_format(container, coding):
            raise InvalidRequestError(
                f"libsndfile here cannot write {kind}; write wav, or install soundfile's own wheel"
            )
        target.open("wb").close()  # for the system's own words where that fails
        self._broken: type[Exception] = soundfile.LibsndfileError
        self._file = soundfile.SoundFile(target, "w", rate, 1, coding, format=container)
        self._file.comment = SYNTHETIC
        for name, value in tags.items():
            setattr(self._file, "tracknumber" if name == "track" else name, value)

    def write(self, samples: Samples) -> None:
        self._safely(lambda: self._file.write(np.clip(samples, -1.0, 1.0)))

    def close(self) -> None:
        self._safely(self._file.close)

    def _safely(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (self._broken, AssertionError) as error:  # it asserts that all was written
            raise OSError(errno.EIO, "the encoder could not write all of it; the disk may be full") from error


class _FfmpegWriter:
    """Writes AAC, bare or in MP4, which is whole when it is closed."""

    def __init__(self, target: Path, kind: Format, rate: int, tags: Mapping[str, str]) -> None:
        try:
            from megatalker.serving.server.encoding import CompressingEncoder
        except ImportError:
            raise InvalidRequestError(
                f"{kind} needs the extra 'server', which is not installed: pip install 'megatalker[server]'; or write "
                "mp3, opus, flac or wav"
            ) from None
        from megatalker.serving.audio import SYNTHETIC

        self._file = target.open("wb")
        container = "adts" if kind is Format.AAC else "ipod"
        self._encoder = CompressingEncoder(
            f"audio/{kind}", container, "aac", {}, rate, self._file, SYNTHETIC, bit_rate=96_000
        )
        self._encoder.tag(tags)

    def write(self, samples: Samples) -> None:
        self._encoder.encode(samples)

    def close(self) -> None:
        if not self._file.closed:
            with self._file:
                self._encoder.finish()
