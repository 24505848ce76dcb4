"""A transport's end that writes what it hears into a WAV file instead of playing it."""

import asyncio
import time
from pathlib import Path

from pipecat.frames.frames import OutputAudioRawFrame, StartFrame
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from megatalker.serving.audio import SYNTHETIC, WavWriter, from_pcm16


class WavOutput(BaseOutputTransport):
    """Writes mono speech at the pace of a loudspeaker, because Pipecat reports each word as heard by that clock.

    After each chunk the file is complete and playable.

    Raises:
        InvalidRequestError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_end_silence_secs=0))
        self.path = path
        self._wav = WavWriter(path, comment=SYNTHETIC)
        self._played_until = 0.0
        self.seconds = 0.0
        """Speech written so far."""

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        pcm = from_pcm16(frame.audio)
        self._wav.write(pcm)
        seconds = len(pcm) / frame.sample_rate
        self.seconds += seconds
        now = time.monotonic()
        self._played_until = max(self._played_until, now) + seconds
        await asyncio.sleep(self._played_until - now)
        return True

    async def cleanup(self) -> None:
        await super().cleanup()
        self._wav.close()
