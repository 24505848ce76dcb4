"""Destinations of speech: a file, standard output, the sound device."""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.cli.say.formats import Format, choose_format, choose_rate
from megatalker.cli.say.player import SoundPlayer, player_missing
from megatalker.cli.say.writers import Samples, Writer, open_writer
from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.serving.provenance import SIGNABLE, FileSigner
from megatalker.settings import C2paSettings

logger = logging.getLogger(__name__)


class OutputError(MegatalkerError):
    """The speech cannot be written any further; the message says how much of it is kept."""


class Destination:
    """Takes samples while they are made. A file is created with the first of them; WAV and bare samples are whole after
    every call, other formats when they are closed.

    Args:
        out: file name, ``-`` for standard output, or ``None``: ``speech.wav`` unless played.
        kind: the format; ``None``: as the file's ending says, else WAV.
        rate: of the file in Hz; ``None``: 8000 for G.711, else 24000.
        play: on the sound device; ``None``: if there is one, unless ``out`` is ``-``.
        c2pa: signs the finished file, where the settings name a key and its format has a place for a manifest.

    Raises:
        InvalidRequestError: the file cannot be written, its ending names no format, or standard output is a terminal or
            closed.
        SettingsError: the key in ``c2pa`` cannot sign.
        UnsupportedError: ``play``, and there is no sound device; or a package that signs is missing.
    """

    def __init__(
        self,
        out: str | None,
        *,
        kind: Format | None = None,
        rate: int | None = None,
        play: bool | None = None,
        c2pa: C2paSettings | None = None,
    ) -> None:
        self._kind = choose_format(out, kind)
        self.rate = choose_rate(self._kind, rate)
        self._stdout = _claim_standard_output() if out == "-" else None
        playing = (self._stdout is None and player_missing() is None) if play is None else play
        self._path = None if self._stdout else _path(out, f"speech.{self._kind}", needed=not playing)
        self._player = SoundPlayer() if playing else None
        self._signer = None if c2pa is None or self._path is None else FileSigner.configured(c2pa)
        self._writer: Writer | None = None
        self._samples = 0

    @property
    def name(self) -> str:
        """The destination's name in messages."""
        if self._stdout is not None:
            return "standard output"
        return "the sound device" if self._path is None else str(self._path)

    @property
    def seconds(self) -> float:
        """Seconds of speech that were written wholly."""
        return self._samples / SAMPLE_RATE

    @property
    def kept(self) -> str:
        """A message about the speech that was kept so far."""
        if not self._samples:
            return "nothing had been spoken"
        if self._path is None:
            return f"{self.seconds:.1f} s of speech went to {self.name}"
        return f"{self.seconds:.1f} s of speech are kept in {self._path}"

    def write(self, samples: Samples) -> None:
        """Append float32 ``[n]``, full scale 1.

        Raises:
            OutputError: the samples cannot be written, for example because the disk is full.
            BrokenPipeError: the reader has closed the pipe.
        """
        with self._told():
            self._write(samples)
        self._samples += len(samples)

    def finish(self) -> None:
        """The speech is complete: wait until it has been played. A file exists then even if nothing was said.

        Raises:
            OutputError, BrokenPipeError: as :meth:`write`.
        """
        self.write(np.empty(0, np.float32))
        if self._writer is not None:
            with self._told():
                self._writer.close()
                self._sign()
        if self._player is not None:
            self._player.finish()
        self.close()

    def close(self) -> None:
        """Close what is open, without waiting for the player. May be called again."""
        with suppress(OSError):  # the full disk or the closed pipe once more, which write() has told of
            if self._writer is not None:
                self._writer.close()
        if self._player is not None:
            self._player.close()

    def _sign(self) -> None:
        if self._signer is None or self._path is None:
            return
        if self._kind not in SIGNABLE:
            logger.warning(
                "%s is not signed: C2PA has no place in %s; %s have", self._path, self._kind, ", ".join(SIGNABLE)
            )
            return
        self._signer.sign_file(self._path, SIGNABLE[self._kind])

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write {self.name}: {error.strerror}; {self.kept}") from error

    def _write(self, samples: Samples) -> None:
        if self._writer is None:
            target = self._stdout or self._path
            if target is not None:
                self._writer = open_writer(target, self._kind, self.rate)
        if self._writer is not None:
            self._writer.write(samples)
        if self._player is not None:
            self._player.write(samples)


class _Unseekable(io.BufferedWriter):
    """Standard output, written from start to end without seeking: a file may have been opened for appending."""

    def seekable(self) -> bool:
        return False


def _claim_standard_output() -> BinaryIO:
    """Return standard output for samples alone: all that is printed there from now on goes to standard error."""
    if sys.stdout is None or sys.stdout.isatty():
        state = "closed" if sys.stdout is None else "a terminal"
        raise InvalidRequestError(f"standard output is {state}, expected a pipe or a file; or give --out a file name")
    sys.stdout.flush()
    claimed = _Unseekable(io.FileIO(os.dup(1), "wb"))
    os.dup2(2, 1)
    return claimed


def _path(out: str | None, default: str, *, needed: bool) -> Path | None:
    """The file to write; refused now rather than after everything has been loaded."""
    if out is None and not needed:
        return None
    path = Path(out or default)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidRequestError(f"cannot write {path}; expected a file name in an existing, writable folder")
    return path
