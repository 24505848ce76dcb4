"""In the engine's process: audio leaves in one message for each codec step, instead of waiting here for a consumer."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.chunks import ChunkQueue, Progress, Waiter
from megatalker.engine.speech.outputs import Chunk, FinishReason
from megatalker.serving.processes.control import Failure
from megatalker.serving.processes.messages import Audio, Begun, Ended, SpeechOutput, pack_report


class Outbox:
    """Messages to one process of callers. Thread-safe."""

    def __init__(self, engine: int, send: Callable[[bytes], None]) -> None:
        self._engine, self._send = engine, send
        self._audio: list[Audio] = []
        self._lock = threading.Lock()

    def add(self, audio: Audio) -> None:
        """Take a chunk along with the next message."""
        with self._lock:
            self._audio.append(audio)

    def wake(self, _waiting: Sequence[Any]) -> None:
        """Send the chunks of a codec step."""
        self._flush([])

    def end(self, ended: Ended) -> None:
        """Send the end of an utterance, after its chunks."""
        self._flush([ended])

    def _flush(self, ended: list[Ended]) -> None:
        with self._lock:
            audio, self._audio = self._audio, []
            if audio or ended:
                self._send(pack_report(SpeechOutput(self._engine, audio, ended)))


class Outlet(ChunkQueue):
    """The chunks of one utterance on their way to its caller's process."""

    def __init__(
        self,
        number: int,
        progress: Progress,
        outbox: Outbox,
        word_times: bool,
        max_untaken_s: float | None,
        on_room: Callable[[], None],
        on_end: Callable[[], object],
    ) -> None:
        super().__init__(max_untaken_s, on_room)
        self.number, self._progress, self._outbox, self._word_times = number, progress, outbox, word_times
        self._on_end, self._gaps_told, self._begun_told = on_end, 0, 0

    def put(self, chunk: Chunk) -> list[Waiter]:
        if self.reason is not None:
            return []
        self.untaken_s += len(chunk.pcm) / SAMPLE_RATE
        progress, codes = self._progress, chunk.codes
        gaps, told = progress.chunk_gaps_s, self._gaps_told
        self._gaps_told = len(gaps)
        audio = Audio(
            id=self.number,
            pcm=cast("bytearray", chunk.pcm.data),  # sent without another copy
            codes=b"" if codes is None else codes.astype(np.uint16).tobytes(),
            frames=chunk.frames,
            decoded_at=chunk.decoded_at,
            requested_at=chunk.requested_at,
            prefilled_at=progress.prefilled_at,
            gap_s=gaps[-1] if len(gaps) > told else None,
            segments=progress.segments,
            final=chunk.final,
            ends=chunk.ends,
            begun=self._begun(),
            switches=progress.switches,
            marks=chunk.marks,
            prosody=chunk.prosody,
        )
        self._outbox.add(audio)
        return [(self._outbox, None)]

    def finish(self, reason: FinishReason, error: Exception | None = None) -> bool:
        if self.reason is not None:
            return False
        self.reason, self.error, progress = reason, error, self._progress
        failure = None if error is None else Failure.of(error)
        unsaid, underruns = progress.unsaid_chars, progress.playback.underruns
        self._outbox.end(Ended(self.number, reason, failure, progress.segments, unsaid, underruns, self._begun()))
        self._on_end()
        return True

    def taken(self, samples: int) -> None:
        """The consumer in the other process has taken this many samples more."""
        full, self.untaken_s = self.is_full(), self.untaken_s - samples / SAMPLE_RATE
        if full or self._was_full:
            self._was_full = self.untaken_s > 0
            self._on_room()

    def _begun(self) -> list[Begun]:
        if not self._word_times:
            return []
        begun, first = self._progress.begun, max(0, self._begun_told - 1)  # the last that was told of may have changed
        self._begun_told = len(begun)
        return [
            Begun(first + place, one.letters_before, one.begins_s, one.segment.text, one.cut, one.pause_s)
            for place, one in enumerate(begun[first:])
        ]
