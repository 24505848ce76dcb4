"""The codec's launches: frames in, chunks out.

A device may still compute a chunk when the next frame is begun: what was started in one tick is collected in the next.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.engine.blame import pass_trial
from megatalker.engine.chunk_queue import Waiter, wake
from megatalker.engine.guarded_calls import REQUEST_ERRORS, Fault, GuardedCalls
from megatalker.engine.outputs import Chunk
from megatalker.engine.runaway import frame_levels
from megatalker.engine.scheduling import MOST_CODEC_STREAMS, select_audio
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Progress, Utterance, candidate
from megatalker.interfaces import CodecState

logger = logging.getLogger(__name__)

REPLAY_FRAMES = 256
"""Frames of one call when a codec state is brought up to date: bounds memory."""
WARM_VOICES = 16
"""Cloned voices whose codec state, warmed by their reference frames, is kept for the next utterance."""


class Download:
    """The chunks of one codec call on their way to the host, without waiting for the device that computes them."""

    def __init__(self, chunks: list[Tensor]) -> None:
        self.sizes = [len(chunk) for chunk in chunks]
        """Samples of each."""
        self._done: torch.cuda.Event | None = None
        device = chunks[0].device
        if device.type != "cuda":
            self._chunks = [chunk.cpu() for chunk in chunks]
            return
        # one copy for all, into page-locked memory
        whole = torch.cat(chunks).to("cpu", non_blocking=True)
        self._chunks = list(torch.split(whole, self.sizes))
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(device))

    @property
    def under_way(self) -> bool:
        """:meth:`wait` may have to wait."""
        return self._done is not None

    def wait(self) -> list[Tensor]:
        """The chunks on the CPU."""
        if self._done is not None:
            self._done.synchronize()
        return self._chunks


Samples = NDArray[np.float32]
StepUnderWay = tuple[Sequence[Utterance], Download]


class CodecStage:
    """Decodes pending frames and hands out chunks."""

    def __init__(self, state: WorkerState, calls: GuardedCalls) -> None:
        self._state, self._calls = state, calls
        self._under_way: list[StepUnderWay] = []
        self._warm_states: OrderedDict[bytes, CodecState] = OrderedDict()
        self._warm_states_of: object = None
        """The codec that made them."""

    def start(self, now: float) -> bool:
        """Have the next step of due audio made; says whether there was any.

        A newcomer's first chunk is waited for. Else a chunk that is ready is handed out, one that a device still
        computes is left to :meth:`collect`; where more is due, this step is waited for, so that arrivals are looked at
        before the next.
        """
        utterances = self._state.utterances
        due = [candidate(index, one, one.ungiven) for index, one in enumerate(utterances) if one.due(now)]
        if not due:
            return False
        codec = self._state.codec.serving
        limit = (None if codec is None else codec.max_streams) or MOST_CODEC_STREAMS
        chosen = [utterances[index] for index in select_audio(due, limit=min(limit, MOST_CODEC_STREAMS))]
        trial = next((one for one in chosen if one.suspected and one.is_suspect("codec")), None)
        if trial is not None:
            chosen = [trial]
        try:
            self._start(chosen)
            computing = [step for step in self._under_way[-1:] if step[1].under_way]
            if not computing or trial is not None or chosen[0].progress.playback.dry_at is None:
                self._collect(self._under_way)
            else:
                self._collect(self._under_way[:-1])
                if len(due) > len(chosen):
                    self._wait(*computing)
        except Exception:
            self._lose_what_is_under_way()
            raise
        return True

    def collect(self) -> bool:
        """Wait for the chunks under way and hand them out; says whether there were any."""
        did = bool(self._under_way)
        try:
            self._collect(self._under_way)
        except Exception:
            self._lose_what_is_under_way()
            raise
        return did

    def _collect(self, steps: Sequence[StepUnderWay]) -> None:
        for step in list(steps):
            self._hand_out_all(*step)
            self._under_way.remove(step)

    def _wait(self, step: StepUnderWay) -> None:
        served, download = step
        self._calls.step(self._state.codec, "decode", lambda _: download.wait(), served, ends=False)

    def _lose_what_is_under_way(self) -> None:
        for utterances, _ in self._under_way:
            for utterance in utterances:
                utterance.rewind_codec()
        self._under_way = []

    def _start(self, utterances: Sequence[Utterance]) -> None:
        ready = [utterance for utterance in utterances if self._prepare(utterance)]
        if not ready:
            return
        states = [utterance.codec_state for utterance in ready if utterance.codec_state is not None]
        try:
            download = self._decode(states, _codes_to_give(ready), ready)
        except REQUEST_ERRORS as error:
            if len(ready) == 1:
                _refuse(ready[0], error)
                return
            for utterance in ready:  # no state advanced: find out whom it concerns
                self._start([utterance])
            return
        for utterance in ready:
            utterance.given = len(utterance.frames)
        self._under_way.append((ready, download))

    def _decode(self, states: Sequence[CodecState], codes: Sequence[Tensor], served: Sequence[Utterance]) -> Download:
        return self._calls.step(
            self._state.codec, "decode", lambda codec: Download(codec.decode(states, codes)), served, ends=False
        )

    def _arrived(self, download: Download, served: Sequence[Utterance]) -> Samples:
        """The chunks, one after another: a copy, since the codec may reuse its buffers."""
        chunks = self._calls.step(self._state.codec, "decode", lambda _: download.wait(), served)
        samples: Samples = np.concatenate([chunk.numpy() for chunk in chunks])
        if not np.isfinite(samples).all():
            role, index = self._state.codec, next(i for i, chunk in enumerate(chunks) if not chunk.isfinite().all())
            raise Fault(role, role.last, f"codec chunk {index} holds NaN or infinity", served)
        return samples

    # ---- states

    def _prepare(self, utterance: Utterance) -> bool:
        """Give the utterance a codec state that has heard what was delivered; discards the audio."""
        if utterance.codec_state is not None:
            return True
        try:
            state = self._state_of(utterance)
            self._replay(state, torch.tensor(utterance.frames[: utterance.delivered], dtype=torch.int64), ())
        except REQUEST_ERRORS as error:
            _refuse(utterance, error)
            return False
        utterance.codec_state = state
        return True

    def _state_of(self, utterance: Utterance) -> CodecState:
        """A state at the start of speech; for an in-context voice after its reference frames, replayed once a voice."""
        codes = utterance.request.plan.voice.reference_codes
        if codes is None:
            return self._open(utterance)
        if self._warm_states_of is not self._state.codec.loaded:
            self._warm_states, self._warm_states_of = OrderedDict(), self._state.codec.loaded
        key = blake2b(codes.numpy().tobytes()).digest()
        if key not in self._warm_states:
            state = self._open(utterance)
            self._replay(state, codes, [utterance])
            self._warm_states[key] = state
            if len(self._warm_states) > WARM_VOICES:
                self._warm_states.popitem(last=False)
        self._warm_states.move_to_end(key)
        warm = self._warm_states[key]
        return self._calls.step(self._state.codec, "copy of a state", lambda _: warm.copy(), [utterance])

    def _open(self, utterance: Utterance) -> CodecState:
        return self._calls.step(self._state.codec, "open", lambda codec: codec.open(), [utterance])

    def _replay(self, state: CodecState, codes: Tensor, served: Sequence[Utterance]) -> None:
        """``served`` is empty for frames that were audio before: no request can be to blame for those."""
        for start in range(0, len(codes), REPLAY_FRAMES):
            self._arrived(self._decode([state], [codes[start : start + REPLAY_FRAMES]], served), served)

    # ---- chunks

    def _hand_out_all(self, utterances: Sequence[Utterance], download: Download) -> None:
        samples = self._arrived(download, utterances)
        levels = frame_levels(samples)
        now = self._state.clock()
        waiters: list[Waiter] = []
        start = 0
        for utterance, chunk in zip(utterances, download.sizes, strict=True):
            end = start + chunk // FRAME_SAMPLES
            if utterance.given > utterance.delivered:  # else it was cancelled meanwhile
                pcm = samples[start * FRAME_SAMPLES : end * FRAME_SAMPLES].copy()  # who keeps one keeps no other
                waiters += self._hand_out(utterance, pcm, levels[start:end], now)
            start = end
        wake(waiters)
        if utterances[0].suspected:
            pass_trial(self._state.utterances, self._state.codec, utterances[0])

    def _hand_out(self, utterance: Utterance, pcm: Samples, levels: list[float], now: float) -> list[Waiter]:
        """Returns whom to wake."""
        progress, first, last = utterance.progress, utterance.delivered, utterance.given
        frames = last - first
        codes = np.array(utterance.frames[first:last], np.int64) if utterance.request.return_codes else None
        chunk = Chunk(
            index=progress.chunks,
            pcm=pcm,
            frames=frames,
            sample_offset=first * FRAME_SAMPLES,
            codes=codes,
            requested_at=progress.requested_at,
            decoded_at=now,
            delivered_at=now,
            final=utterance.ends_well and last == len(utterance.frames),
        )
        _log(chunk, progress)
        progress.note_chunk(now, frames)
        utterance.chunking.note_chunk(frames, progress.playback.ahead(now))
        self._state.counters.chunks += 1
        waiters = utterance.chunks.put(chunk)
        if utterance.runaway is not None:
            decoder = utterance.decoder
            reason = utterance.runaway.audio(levels, text_done=decoder is not None and decoder.text_done_at(first))
            if reason is not None and utterance.ending is None:
                logger.warning("stream with seed %d runs away and is ended: %s", progress.seed, reason)
                utterance.end("runaway")
        return waiters


def _log(chunk: Chunk, progress: Progress) -> None:
    if not logger.isEnabledFor(logging.DEBUG):
        return
    before = progress.last_decoded_at
    since, what = (chunk.requested_at, "the request") if before is None else (before, "the chunk before")
    logger.debug(
        "stream with seed %d: chunk %d of %d frames at %.2f s of speech, %.1f ms after %s, playback %.0f ms behind%s",
        progress.seed,
        chunk.index,
        chunk.frames,
        chunk.sample_offset / SAMPLE_RATE,
        (chunk.decoded_at - since) * 1e3,
        what,
        progress.playback.ahead(chunk.decoded_at) * 1e3,
        ", final" if chunk.final else "",
    )


def _codes_to_give(utterances: Sequence[Utterance]) -> list[Tensor]:
    """For each ``[frames, code groups]`` int64: what the codec was not given. One conversion for all."""
    fresh = [utterance.frames[utterance.given :] for utterance in utterances]
    codes = torch.from_numpy(np.array(list(chain.from_iterable(fresh)), np.int64))
    return list(torch.split(codes, list(map(len, fresh))))


def _refuse(utterance: Utterance, error: Exception) -> None:
    utterance.drop_pending()
    utterance.ending, utterance.error = "error", error
