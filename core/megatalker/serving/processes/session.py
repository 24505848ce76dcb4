"""In the callers' process: one utterance, with all that another engine needs to go on with it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.chunks import ChunkQueue, Progress, Waiter
from megatalker.engine.speech.outputs import Chunk, Continuation, StreamEnd
from megatalker.engine.speech.word_times import BegunSegment
from megatalker.serving.processes.handle import EngineHandle
from megatalker.serving.processes.messages import (
    Audio,
    Begin,
    Begun,
    Ended,
    EndText,
    FeedText,
    Order,
    StopSpeech,
    Taken,
)

MOST_PIECES = 8
"""Pieces of a text that the engine is told of one by one between two looks of the client's thread; a language model
sends fewer. 10,000 messages a second, of one character each, made everybody's frames take half as long again."""
TAKEN_SHARE = 0.25
"""An engine is told of audio that was taken after this share of what may lie untaken."""


@dataclass(slots=True)
class _HeardText:
    text: str


class ProcessSession:
    """An utterance, whichever engine makes it. What callers do may come from any thread.

    Args:
        begin: the request.
        return_codes: whether the caller wants codes; an engine sends them in any case.
        requested_at: seconds of the monotonic clock.
        backend: names of talker and codec.
        max_untaken_s: as the setting says.
        on_cancel: called where the caller wants no more.
        on_text: called where :meth:`look` must be called soon.
    """

    def __init__(
        self,
        begin: Begin,
        *,
        return_codes: bool,
        requested_at: float,
        backend: tuple[str, str],
        max_untaken_s: float | None,
        on_cancel: Callable[["ProcessSession"], None],
        on_text: Callable[["ProcessSession"], None],
    ) -> None:
        self.id = begin.id
        self.reference = begin.request.plan.voice.reference_digest
        """The recording that its voice comes from."""
        self.progress = Progress(begin.request.sampling.seed, requested_at, *backend)
        self.chunks = _Chunks(max_untaken_s, self._took)
        self.handle: EngineHandle | None = None
        """The engine that makes it; ``None`` while it waits for one."""
        self.waits_since: float | None = None
        """Since when it has waited for an engine to be there."""
        self.suspicions = 0
        """Engines that died in a call for it."""
        self.faults = 0
        """Engines that had no backend left while they made it."""
        self.alone = False
        """The next engine tries it in calls of its own."""
        self._begin, self._return_codes = begin, return_codes
        self._on_cancel, self._on_text = on_cancel, on_text
        self._pieces = 0
        """Fed since the last look."""
        self._untold: list[tuple[str, float]] = []
        """Pieces, and when each came."""
        self._orders: list[Order] = []
        """Text that was fed, and its end."""
        self._before = begin.after
        """Speech of engines elsewhere, whose chunks never came here."""
        self._codes: list[bytes] = []
        self._ends: list[StreamEnd] = []
        self._marks = 0
        self._underruns = 0
        """With engines before this one."""
        self._lock = threading.RLock()  # a finalizer may cancel while this thread sends

    # ---- the caller's side

    def feed(self, text: str) -> None:
        """More text, as :meth:`UtteranceLink.feed <megatalker.engine.commands.UtteranceLink.feed>`."""
        with self._lock:
            self._untold.append((text, time.monotonic()))
            self._pieces += 1
            if self._pieces == 1:
                self._on_text(self)
            if self._pieces <= MOST_PIECES:
                self._tell_text()

    def finish_text(self) -> None:
        """The text is complete."""
        with self._lock:
            self._tell_text()
            self._tell(EndText(self.id))

    def look(self) -> None:
        """Tell the engine of text that was fed in more pieces than it is told of."""
        with self._lock:
            self._pieces = 0
            self._tell_text()

    def _tell_text(self) -> None:
        if self._untold:
            text, came_at = "".join(text for text, _ in self._untold), self._untold[0][1]
            self._untold = []
            self._tell(FeedText(self.id, text, came_at))

    def cancel(self) -> None:
        """Nobody listens any more."""
        self._on_cancel(self)

    def _tell(self, order: Order) -> None:
        with self._lock:
            self._orders.append(order)
            if self.handle is not None:
                self.handle.send([order])

    def _took(self, samples: int) -> None:
        handle = self.handle
        if handle is not None:
            handle.send([Taken(self.id, samples)])

    # ---- the engine's side

    def give_to(self, handle: EngineHandle) -> None:
        """Let this engine make it, from where it stands."""
        with self._lock:
            before, self.handle, self.waits_since = self.handle, handle, None
            if before is not None:
                before.send([StopSpeech(self.id)])
            begin = self._begin
            if self.progress.chunks:
                begin = msgspec.structs.replace(begin, after=self._said())
            if self.alone:
                begin = msgspec.structs.replace(begin, suspect=True)
            self._underruns = self.progress.playback.underruns
            handle.send([begin, *self._orders])
            handle.count(self.reference)

    def wait_for_engine(self) -> None:
        """No engine makes it for now."""
        with self._lock:
            self.handle, self.waits_since = None, self.waits_since or time.monotonic()

    def stop(self) -> None:
        """Tell the engine that nobody listens."""
        with self._lock:
            if self.handle is not None:
                self.handle.send([StopSpeech(self.id)])

    def take(self, audio: Audio) -> list[Waiter]:
        """Take a chunk; returns the consumers that wait for it."""
        progress = self.progress
        self._codes.append(audio.codes)
        self._ends += audio.ends
        chunk = Chunk(
            index=progress.chunks,
            pcm=np.frombuffer(audio.pcm, np.float32),
            frames=audio.frames,
            sample_offset=progress.samples,
            codes=_codes(audio.codes, audio.frames) if self._return_codes and audio.frames else None,
            requested_at=audio.requested_at,
            decoded_at=audio.decoded_at,
            delivered_at=audio.decoded_at,
            final=audio.final,
            ends=audio.ends if self._return_codes else (),
            marks=audio.marks,
            prosody=audio.prosody,
        )
        if progress.chunks == 0:
            progress.requested_at, progress.prefilled_at = audio.requested_at, audio.prefilled_at
        progress.playback.excuse()  # the engine counts what ran dry
        progress.note_chunk(audio.decoded_at, audio.frames, len(chunk.pcm), audio.prosody.rate)
        self._marks += len(audio.marks)
        if audio.gap_s is not None:
            progress.chunk_gaps_s.append(audio.gap_s)
        progress.segments, progress.switches = audio.segments, audio.switches
        for switch in audio.switches[-1:]:
            progress.backend = switch.target if switch.kind == "talker" else progress.backend
        self._note_begun(audio.begun)
        return self.chunks.put(chunk)

    def finish(self, ended: Ended) -> None:
        """The engine has ended it."""
        progress = self.progress
        progress.segments = max(progress.segments, ended.segments)
        progress.unsaid_chars = ended.unsaid_chars
        progress.playback.underruns = self._underruns + ended.underruns
        self._note_begun(ended.begun)
        self.chunks.finish(ended.reason, None if ended.error is None else ended.error.exception())

    def _said(self) -> Continuation:
        progress, before = self.progress, self._before
        codes, ends = _codes(b"".join(self._codes), progress.frames), tuple(self._ends)
        silence, marks = progress.silence, self._marks
        if before is not None:
            spoken = [part for part in (before.codes, codes) if len(part)]
            codes = np.concatenate(spoken) if spoken else codes
            ends, silence, marks = before.ends + ends, before.silence + silence, before.marks + marks
        return Continuation(codes, ends, max(0.0, progress.playback.ahead(time.monotonic())), silence, marks)

    def _note_begun(self, begun: Sequence[Begun]) -> None:
        known = self.progress.begun
        for one in begun:
            if one.index == len(known):
                known.append(BegunSegment(one.letters_before, _HeardText(one.text), one.begins_s, pause_s=one.pause_s))
            known[one.index].segment.text, known[one.index].cut = one.text, one.cut


def _codes(data: bytes, frames: int) -> NDArray[np.int64]:
    width = len(data) // (2 * frames) if frames else 0
    return np.frombuffer(data, np.uint16).reshape(frames, width).astype(np.int64)


class _Chunks(ChunkQueue):
    """A queue that says how much of it was taken."""

    def __init__(self, max_untaken_s: float | None, took: Callable[[int], None]) -> None:
        super().__init__(max_untaken_s)
        self._took, self._untold = took, 0
        self._most = 1 << 60 if max_untaken_s is None else max(1, int(TAKEN_SHARE * max_untaken_s * SAMPLE_RATE))

    def _pop(self) -> Chunk:
        chunk = super()._pop()
        self._untold += len(chunk.pcm)
        if self._untold >= self._most:
            untold, self._untold = self._untold, 0
            self._took(untold)
        return chunk
