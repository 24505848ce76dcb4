"""Audio that a client appends: decoded, and held until it is heard."""

import asyncio
import binascii
from base64 import b64decode

from pipecat.audio.utils import alaw_to_pcm, create_stream_resampler, ulaw_to_pcm

from megatalker.serving.protocol.leniency import FieldError
from megatalker.serving.protocol.realtime_messages import BARE_FORMATS, AudioFormat, RealtimeError
from megatalker.serving.samples import default_rate

RATE = 16_000
"""Samples a second that the pipeline hears."""
BYTES_A_SECOND = 2 * RATE
MOST_S = 120
"""Seconds of audio that wait to be heard."""
LEAST_S = 0.1
"""Less audio is no message."""


class IncomingAudio:
    """Appended audio that nobody has heard yet: 16-bit samples, mono, at :data:`RATE`."""

    def __init__(self) -> None:
        self.format = AudioFormat()
        self.came = asyncio.Event()
        """Is set while something waits."""
        self._held = bytearray()
        self._resampler = create_stream_resampler(clear_after_secs=None)

    @property
    def seconds(self) -> float:
        """Seconds that wait."""
        return len(self._held) / BYTES_A_SECOND

    @property
    def rate(self) -> int:
        """Samples a second that the client sends."""
        return self.format.rate or default_rate(BARE_FORMATS[self.format.type])

    async def append(self, audio: str) -> None:
        """Append audio in base64.

        Raises:
            FieldError: it is not base64, or no whole number of samples.
            RealtimeError: too much would wait.
        """
        try:
            data = b64decode(audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise FieldError(f"audio is not base64: {error}", "audio") from error
        wide = self.format.type == "audio/pcm"
        if wide and len(data) % 2:
            raise FieldError(f"audio has {len(data)} bytes, expected 16-bit samples: an even number", "audio")
        seconds = self.seconds + len(data) / (self.rate * (2 if wide else 1))
        if seconds > MOST_S:
            raise RealtimeError(
                f"{seconds:.0f} s of audio would wait to be heard, expected at most {MOST_S}; send it as it is spoken, "
                "or commit",
                "audio",
                "input_audio_buffer_full",
            )
        if not data:
            return
        match self.format.type:
            case "audio/pcmu":
                data = await ulaw_to_pcm(data, self.rate, RATE, self._resampler)
            case "audio/pcma":
                data = await alaw_to_pcm(data, self.rate, RATE, self._resampler)
            case _:
                data = await self._resampler.resample(data, self.rate, RATE)
        self._held += data
        if self._held:
            self.came.set()

    def take(self, seconds: float) -> bytes:
        """Remove and return at most this much."""
        size = 2 * round(seconds * RATE)
        taken = bytes(self._held[:size])
        del self._held[:size]
        if not self._held:
            self.came.clear()
        return taken

    async def take_message(self) -> bytes:
        """Remove and return everything.

        Raises:
            RealtimeError: it is too short for a message, and stays.
        """
        if self.seconds < LEAST_S:
            raise RealtimeError(
                f"the buffer has {1000 * self.seconds:.0f} ms of audio, expected at least {1000 * LEAST_S:.0f}; "
                "send input_audio_buffer.append first",
                None,
                "input_audio_buffer_commit_empty",
            )
        tail = await self._resampler.flush()
        return self.take(self.seconds) + tail

    async def clear(self, wanted: AudioFormat | None = None) -> None:
        """Forget everything, and take another format from now on if one is given."""
        self.take(self.seconds)
        await self._resampler.flush()
        self.format = wanted or self.format
