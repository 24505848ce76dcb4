"""Player of PCM on the default sound device, in a thread of its own. Needs the extra ``play``."""

import queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import UnsupportedError
from megatalker.serving.background import start_thread


def player_missing() -> str | None:
    """Why nothing can be played here, or ``None`` if it can."""
    try:
        import sounddevice
    except ImportError:
        return "the extra 'play' is not installed: pip install 'megatalker[play]'"
    except OSError as error:
        return f"the PortAudio library is missing: {error}"
    try:
        sounddevice.check_output_settings(samplerate=SAMPLE_RATE, channels=1, dtype="float32")
    except (sounddevice.PortAudioError, ValueError) as error:
        return f"there is no usable sound device: {error}"
    return None


class SoundPlayer:
    """Plays the samples that are written to it, in a thread of its own.

    Raises:
        UnsupportedError: the extra is not installed, or there is no sound device.
    """

    def __init__(self) -> None:
        reason = player_missing()
        if reason is not None:
            raise UnsupportedError(f"cannot play, {reason}; use --no-play --out FILE")
        self._chunks: queue.SimpleQueue[NDArray[np.float32] | None] = queue.SimpleQueue()
        import sounddevice

        self._output: Any = sounddevice.OutputStream(samplerate=SAMPLE_RATE, channels=1, dtype="float32")
        self._output.start()
        self._failure: BaseException | None = None
        self._thread = start_thread(self._run, "megatalker-player", self._fail)

    def write(self, pcm: NDArray[np.float32]) -> None:
        """Queue mono float32 samples at 24 kHz; returns at once."""
        self._chunks.put(pcm)

    def finish(self) -> None:
        """Wait until everything has been played.

        Raises:
            UnsupportedError: the sound device failed meanwhile.
        """
        self._chunks.put(None)
        self._thread.join()
        if self._failure is not None:
            raise UnsupportedError(
                f"the sound device failed ({self._failure}), and not everything was played; use --no-play --out FILE"
            ) from self._failure
        self._output.stop()

    def close(self) -> None:
        """Be silent. May be called again."""
        self._chunks.put(None)
        self._output.close()

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def _run(self) -> None:
        while (pcm := self._chunks.get()) is not None:
            self._output.write(pcm.reshape(-1, 1))
