"""Marks of synthetic speech in a file: watermarks in its samples, the comment in its metadata, a signed manifest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError, MegatalkerError, UnsupportedError
from megatalker.plugins.watermark import WatermarkModel, find_watermark, open_watermark, watermark_names
from megatalker.serving.audio import SOURCE_TYPE
from megatalker.serving.provenance import ManifestFinding, read_manifest
from megatalker.voices.audio_file import check_channels, check_rate, decode_audio
from megatalker.voices.reference_audio import to_24_khz

Samples = NDArray[np.float32]

PIECE_S = 30.0
"""A recording is looked at in pieces of this length."""
LEAST_S = 0.5
"""Shorter pieces are left out."""
LONGEST_S = 3600.0
"""Seconds of a file that are looked at."""


@dataclass(frozen=True, slots=True)
class WatermarkFinding:
    """The result of one detector."""

    name: str
    pieces: int
    """Pieces of up to 30 s that were looked at."""
    marked: int
    """Those in which the confidence reached the threshold."""
    confidence: float
    """The highest of all pieces, from 0 to 1."""
    unavailable: str | None = None
    """Why the detector could not look."""

    @property
    def found(self) -> bool:
        return self.marked > 0


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found in a file."""

    seconds: float
    """Length of what was looked at."""
    comment: str | None
    """The comment in the metadata, where it names synthetic speech."""
    manifest: ManifestFinding | None
    """C2PA's manifest; ``None`` where there is none, or it cannot be read here."""
    manifest_unread: str | None
    """Why no manifest was looked for."""
    watermarks: tuple[WatermarkFinding, ...]


def inspect_file(path: Path, names: Sequence[str] | None = None, *, download: bool = False) -> Findings:
    """Look for marks in an audio file. MP4 and WebM are read up to a minute, other formats up to an hour.

    Args:
        path: the file.
        names: watermarks to look for; ``None``: all that are installed.
        download: detectors may fetch what they lack.

    Raises:
        InvalidRequestError: there is no such file, it is no audio, or it is shorter than half a second.
        SettingsError: no watermark has this name.
        UnsupportedError, PluginError: a watermark that was named cannot be loaded, or not without a download.
    """
    asked = watermark_names() if names is None else names
    detectors = [_Detector(name, optional=names is None, download=download) for name in asked]
    samples = 0
    for piece in _pieces(path):
        samples += len(piece)
        for detector in detectors:
            detector.listen(piece)
    if not samples:
        raise InvalidRequestError(f"{path} is shorter than {LEAST_S:g} s, expected at least that")
    manifest, unread = None, None
    try:
        manifest = read_manifest(path)
    except UnsupportedError as error:
        unread = str(error)
    found = tuple(one.finding for one in detectors)
    return Findings(samples / SAMPLE_RATE, source_comment(path), manifest, unread, found)


def detect_in(model: WatermarkModel, samples: Samples) -> float:
    """Return the confidence for float32 ``[n]`` at 24 kHz: the highest of all pieces of 30 s."""
    return max(model.detect(piece) for piece in _cut(samples))


class _Detector:
    def __init__(self, name: str, *, optional: bool, download: bool) -> None:
        self.finding = WatermarkFinding(name, 0, 0, 0.0)
        self._model: WatermarkModel | None = None
        try:
            self._plugin = find_watermark(name)
            if not download and (wanted := self._plugin.would_download()) is not None:
                raise UnsupportedError(
                    f"the watermark {name!r} would download {wanted}; allow it with --download (download=True)"
                )
            self._model = open_watermark(self._plugin)
        except MegatalkerError as error:
            if not optional:
                raise
            self.finding = WatermarkFinding(name, 0, 0, 0.0, str(error))

    def listen(self, piece: Samples) -> None:
        if self._model is not None:
            confidence, before = self._model.detect(piece), self.finding
            self.finding = WatermarkFinding(
                before.name,
                before.pieces + 1,
                before.marked + (confidence >= self._plugin.threshold),
                max(before.confidence, confidence),
            )


def source_comment(path: Path) -> str | None:
    """Return the comment in a file's metadata where it names IPTC's type of media that a trained model made."""
    try:
        import av

        with av.open(str(path), options={"protocol_whitelist": "file"}) as file:
            texts = [*file.metadata.values(), *(text for one in file.streams for text in one.metadata.values())]
    except (ImportError, OSError, ValueError):  # PyAV's errors are both of these
        try:
            with soundfile.SoundFile(path) as file:
                texts = [file.comment]
        except (soundfile.LibsndfileError, TypeError, ValueError):
            texts = []
    return next((text for text in texts if SOURCE_TYPE in text), None)


def _pieces(path: Path) -> Iterator[Samples]:
    """Yield the recording piece by piece, mono at 24 kHz."""
    if not path.is_file():
        raise InvalidRequestError(f"no such audio file: {path}; expected the path of a local file")
    try:
        with soundfile.SoundFile(path) as file:
            check_rate(file.samplerate)
            check_channels(file.channels)
            size = round(PIECE_S * file.samplerate)
            for _ in range(round(LONGEST_S / PIECE_S)):
                block = file.read(size, dtype="float32", always_2d=True)
                yield from _cut(to_24_khz(block.mean(1), file.samplerate))
                if len(block) < size:
                    return
    except (soundfile.LibsndfileError, TypeError, ValueError) as error:
        if isinstance(error, MegatalkerError):
            raise
        audio, rate = decode_audio(path)
        yield from _cut(to_24_khz(audio.mean(1), rate))


def _cut(samples: Samples) -> Iterator[Samples]:
    size = round(PIECE_S * SAMPLE_RATE)
    for begin in range(0, len(samples), size):
        piece = np.ascontiguousarray(samples[begin : begin + size])
        if len(piece) >= LEAST_S * SAMPLE_RATE:
            yield piece
