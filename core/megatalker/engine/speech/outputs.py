"""Outputs of the engine: what it hands out and reports: chunks, the facts of one stream, the counters of one engine."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from megatalker.errors import IncompleteSpeechError, InvalidRequestError
from megatalker.plugins.registry import Kind
from megatalker.prompt.markup.prosody import PLAIN, Prosody

FinishReason = Literal["eos", "max_frames", "incomplete", "cancelled", "runaway", "error"]
"""Why a stream ended.

* ``eos``: it said everything.
* ``max_frames``: it has as many frames as the request, or the engine's settings, allow.
* ``incomplete``: everything was tried, and some text was left out: a segment reached its limit of frames, or ended too
  early twice (:mod:`megatalker.engine.endings`).
* ``runaway``: a segment was caught looping or silent after its text (:mod:`megatalker.engine.runaway`) and was cut.
* ``cancelled``: its consumer wanted no more.
* ``error``: it failed (:attr:`SpeechStream.error <megatalker.engine.SpeechStream.error>`)."""


EndReason = Literal["eos", "short", "runaway"]
Pcm = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """A decoder stream of an utterance ended, and another begins or the utterance ends."""

    frame: int
    """Frames of the utterance before it."""
    reason: EndReason
    """End of speech; the same, too early for its text; or the audio was silent for long after the text. Other ends
    follow from the frames themselves."""


@dataclass(frozen=True, slots=True)
class ReachedMark:
    """A mark of a text in markup that speech has reached."""

    name: str
    sample: int
    """Samples of the stream before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A whole number of frames of speech; or, with no frames, silence of any length that markup asks for. Times are
    ``time.monotonic()`` seconds.
    """

    index: int
    pcm: NDArray[np.float32]
    """``[frames * 1920]`` samples at 24 kHz within [-1, 1]; more or fewer where markup sets a rate; without frames
    ``[samples]`` of silence, maybe none."""
    frames: int
    sample_offset: int
    """Samples of the stream before this chunk."""
    codes: NDArray[np.int64] | None
    """``[frames, code groups]`` where the request asked for codes."""
    requested_at: float
    """When the request was accepted; for text that arrives bit by bit, when the piece came that let speech begin."""
    decoded_at: float
    """When the engine had the samples."""
    delivered_at: float
    """When the consumer took the chunk."""
    final: bool = False
    """No chunk follows, and the speech did not fail. ``False`` where that is not known yet: the talker finds the end of
    speech a frame after the last one, and no audio is held back until then. So the last chunk may not be final, but
    nothing follows one that is; the end itself is the end of the iteration."""
    ends: tuple[StreamEnd, ...] = ()
    """Decoder streams that ended before this chunk's last frame and not before the chunk before; with ``codes`` only.
    """
    marks: tuple[ReachedMark, ...] = ()
    """Marks of the text that lie in this chunk, which has no frames."""
    prosody: Prosody = PLAIN
    """How markup lets it be spoken. What a stream hands out is spoken like that; between engine and stream
    (:mod:`megatalker.engine.speech.shaped_chunks`) it is yet to be done, and a chunk without samples says so early."""


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """All that an utterance has said: with it and the request, any engine with the same checkpoint goes on with the
    codes that the first engine would have made.
    """

    codes: NDArray[np.int64]
    """``[frames, code groups]``: those of all chunks."""
    ends: tuple[StreamEnd, ...] = ()
    """The ends that those chunks told of."""
    ahead_s: float = 0.0
    """Seconds of audio that the listener has in hand."""
    silence: int = 0
    """Samples of silence that markup asked for, in those chunks."""
    marks: int = 0
    """Marks of those chunks."""
    heard: int | None = None
    """Samples of those chunks where prosody made them more or fewer."""

    @property
    def samples(self) -> int:
        """Samples of those chunks, before prosody."""
        return len(self.codes) * FRAME_SAMPLES + self.silence

    @classmethod
    def after(cls, chunks: Sequence[Chunk], ahead_s: float = 0.0) -> "Continuation | None":
        """Return what these chunks said, which are all of an utterance and were asked for with ``return_codes``.
        ``None``: there is no chunk.
        """
        if not chunks:
            return None
        codes = [chunk.codes for chunk in chunks if chunk.codes is not None]
        return cls(
            np.concatenate(codes) if codes else np.empty((0, 0), np.int64),
            tuple(end for chunk in chunks for end in chunk.ends),
            ahead_s,
            sum(len(chunk.pcm) for chunk in chunks if not chunk.frames),
            sum(len(chunk.marks) for chunk in chunks),
            sum(len(chunk.pcm) for chunk in chunks),
        )


@dataclass(frozen=True, slots=True)
class BackendSwitch:
    """A stream moved to another backend because the first one failed."""

    kind: Kind
    origin: str
    target: str
    reason: str
    frame: int
    """Frames of the stream that existed then; everything after them comes from ``target``."""

    def __str__(self) -> str:
        return f"{self.kind} backend {self.origin} -> {self.target} at frame {self.frame}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Figures of one stream so far. Seconds; ``None`` where there is nothing to measure yet."""

    backend: str
    codec: str
    seed: int
    finish_reason: FinishReason | None
    frames: int
    """Frames handed out as audio."""
    chunks: int
    segments: int
    """Decoder streams begun for this utterance: more than one for long text."""
    audio_s: float
    queue_wait_s: float | None
    """Request accepted until its prompt was read; part of ``ttfc_s``."""
    ttfc_s: float | None
    """Request accepted until the consumer held the first chunk."""
    rtf: float | None
    """Time from the request to the last chunk made, divided by the audio's duration."""
    underruns: int
    """Times an emulated player that starts at the first chunk ran dry while the engine had text to speak."""
    switches: tuple[BackendSwitch, ...]
    unsaid_chars: int = 0
    """Characters of the text that were left out, estimated at the usual rate of speech for a segment that was cut.
    Above 0 whenever ``finish_reason`` is ``incomplete`` or ``runaway``; not counted when it is ``cancelled``."""


_WHY_INCOMPLETE: Mapping[FinishReason | None, str] = {
    "incomplete": "a segment reached its limit of frames (setting max_segment_frames, the backend's max_positions), or "
    "its speech ended too early twice; try another seed, or shorter sentences",
    "runaway": "a segment went on in silence or in a loop after its text and was cut; try another seed",
    "max_frames": "it reached the bound max_frames; raise the setting, or send less text at a time",
}


def require_complete(facts: StreamFacts, *, bound_asked: bool = False) -> None:
    """Raise unless the speech, which is over, holds all of its text. For callers that would not look at the reason.

    Args:
        facts: of the stream.
        bound_asked: the request itself asked for ``max_frames``, so that ending there is what its caller wants.

    Raises:
        IncompleteSpeechError: some text was left out.
    """
    why = _WHY_INCOMPLETE.get(facts.finish_reason)
    if why is None or (facts.finish_reason == "max_frames" and (bound_asked or not facts.unsaid_chars)):
        return
    unit = "character" if facts.unsaid_chars == 1 else "characters"
    raise IncompleteSpeechError(
        f"the speech is over and leaves out about {facts.unsaid_chars} {unit} of its text: {why}"
    )


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Counters since the engine was opened."""

    streams: int
    """Requests accepted."""
    frames: int
    """Frames decoded."""
    tokens: int
    """Codes of those frames: 16 each with the published checkpoints."""
    chunks: int
    switches: int
    """Streams moved to another backend."""
    cancelled: int
    errors: int
    """Streams that ended with an error."""
    ticks: int
    """Rounds of the engine's thread in which it had something to do: one launch each, or the first frame of new
    streams with all that belongs to it."""
    host_s: float
    """Seconds of all ticks outside of backends: the engine's own work, and waiting for other threads."""
    backend_s: float
    """Seconds of all ticks inside of backends: their own work on the host, and waiting for the device."""
    begun: int
    """Requests that were prefilled."""
    queue_wait_s: float
    """Seconds that those had waited, from the request to its prefill, all together."""
    decode_calls: int
    """Launches of frames; ``decode_rows / decode_calls`` is how wide they were."""
    decode_rows: int
    """Streams of all those launches."""
    lent: int
    """Times that a stream lent its row to another: it had no work, or its owner many rows."""
    repeated: int
    """Segments that were spoken once more, since their speech was too short for their text."""
    incomplete: int
    """Streams that ended as ``incomplete`` or ``runaway``: some of their text was left out."""
    active: int
    """Streams that hold, or are about to hold again, rows of the backend."""
    waiting: int
    """Streams that have work and wait for rows."""
    sustainable: int | None
    """Streams that can play at a time without a gap, by what launches have cost lately; ``None`` while that is unknown.
    """
    idle: int
    """Streams that hold no row and have no work: they wait for text, or for their consumer."""
    backend: str
    codec: str
    faulty: Mapping[str, str]
    """Backends given up, such as ``talker compiled``, and why."""
    preparing: str | None
    """Something that the talker prepares in the background, such as ``frames of 4 streams``."""
    unprepared: str | None
    """Why the talker goes on without what it had prepared."""

    @classmethod
    def nothing(cls, backend: str, codec: str) -> "EngineMetrics":
        """Counters of an engine with these backends that has done nothing."""
        counts = {field.name: 0 for field in fields(cls) if field.type in (int, float)}
        return cls(**counts, sustainable=None, backend=backend, codec=codec, faulty={}, preparing=None, unprepared=None)


def together(engines: Sequence[EngineMetrics]) -> EngineMetrics:
    """Return the counters of several engines as those of one; texts are those of the first that has any."""
    first = engines[0]
    counts = {
        field.name: sum(getattr(engine, field.name) for engine in engines)
        for field in fields(EngineMetrics)
        if field.type in (int, float)
    }
    known = [engine.sustainable for engine in engines if engine.sustainable is not None]
    return replace(
        first,
        **counts,
        sustainable=sum(known) if known else None,
        faulty={name: why for engine in reversed(engines) for name, why in engine.faulty.items()},
        preparing=next((engine.preparing for engine in engines if engine.preparing), None),
        unprepared=next((engine.unprepared for engine in engines if engine.unprepared), None),
    )


class Pieces:
    """The chunks of a stream, cut; iterate over it once, with ``for`` or ``async for``, instead of over the stream.

    A piece never waits for the chunk after it, since its length divides a frame.

    Raises:
        InvalidRequestError: ``seconds`` does not divide a frame.
    """

    def __init__(self, sync: Iterator[Chunk], later: AsyncIterator[Chunk], seconds: float) -> None:
        """``sync`` and ``later`` are the same stream, for threads and for event loops."""
        samples = round(seconds * SAMPLE_RATE)
        if samples < 1 or abs(samples - seconds * SAMPLE_RATE) > 1e-6 or FRAME_SAMPLES % samples:
            raise InvalidRequestError(
                f"pieces of {seconds} s were asked for, expected a length that divides a frame of {FRAME_SECONDS} s, "
                "such as 0.04, 0.02 or 0.01"
            )
        self._sync, self._later, self._samples = sync, later, samples
        self._rest: Pcm = np.empty(0, np.float32)

    def __iter__(self) -> Iterator[Pcm]:
        """``[seconds * 24000]`` samples each; after pauses of another length silence fills the last."""
        for chunk in self._sync:
            yield from self._cut(chunk.pcm)
        yield from self._last()

    async def __aiter__(self) -> AsyncIterator[Pcm]:
        """Yield the same pieces to an event loop."""
        async for chunk in self._later:
            for piece in self._cut(chunk.pcm):
                yield piece
        for piece in self._last():
            yield piece

    def _cut(self, pcm: Pcm) -> Pcm:
        """Return ``[pieces, samples]``, and keep what is left."""
        joined = np.concatenate((self._rest, pcm)) if len(self._rest) else pcm
        end = len(joined) - len(joined) % self._samples
        self._rest = joined[end:].copy()
        return joined[:end].reshape(-1, self._samples)

    def _last(self) -> Pcm:
        return self._cut(np.zeros(-len(self._rest) % self._samples, np.float32))
