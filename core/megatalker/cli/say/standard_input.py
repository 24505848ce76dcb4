"""Feeds standard input to a stream while it arrives."""

import codecs
import io
import os
import sys
import threading

from megatalker.engine import SpeechStream
from megatalker.errors import InvalidRequestError, MegatalkerError

READ_BYTES = 1 << 16


class StandardInput(threading.Thread):
    """Reads UTF-8 from standard input into ``stream``, which must have been opened without text.

    What goes wrong ends the stream at once and is :attr:`error` then.
    """

    def __init__(self, stream: SpeechStream) -> None:
        super().__init__(name="megatalker-stdin", daemon=True)  # a terminal or a pipe may never end
        self._stream = stream
        self.blank = True
        """Nothing but whitespace has come so far."""
        self.error: MegatalkerError | None = None

    def run(self) -> None:
        try:
            self._read()
        except MegatalkerError as error:
            self.error = error
        except BaseException as error:  # whatever it is, the stream must not wait for more text
            why = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
            self.error = InvalidRequestError(f"cannot read standard input: {why}")
            self.error.__cause__ = error
        if self.error is not None:
            self._stream.cancel()

    def _read(self) -> None:
        if sys.stdin is None:
            raise InvalidRequestError("standard input is closed; expected text from a pipe, a file or a terminal")
        decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a byte order mark is not text
        lines = io.IncrementalNewlineDecoder(decoder, translate=True)
        before = 0
        data = b"-"
        while data:
            # not sys.stdin: its lock would be held while waiting, and a process cannot end without it
            data = os.read(sys.stdin.fileno(), READ_BYTES)
            try:
                text = lines.decode(data, final=not data)
            except UnicodeDecodeError as error:
                place = before + len(data) - len(error.object) + error.start
                raise InvalidRequestError(
                    f"standard input is not UTF-8 at byte {place} ({error.reason}); "
                    "expected UTF-8 text, convert it with iconv"
                ) from error
            before += len(data)
            self.blank = self.blank and not text.strip()
            self._stream.feed(text)
        self._stream.finish()
