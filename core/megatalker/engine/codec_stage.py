"""The codec's launches: frames in, chunks out.

A device may still compute a chunk when the next frame is begun: what was started in one tick is collected in the next.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine.decoder_stream import CodecReplay
from megatalker.engine.endings import end_segment
from megatalker.engine.failover import pass_trial
from megatalker.engine.guarded_calls import REQUEST_ERRORS, Fault, GuardedCalls
from megatalker.engine.handing_out import Samples, hand_out_speech
from megatalker.engine.runaway import frame_levels
from megatalker.engine.speech.chunks import Waiter, wake
from megatalker.engine.speech.outputs import StreamEnd
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.interfaces import CodecState
from megatalker.plugins.checks import samples_complaint

logger = logging.getLogger(__name__)

REPLAY_S = 0.1  # not tuned: a bound of what others wait
"""About how long a call takes when a codec state is brought up to date: others wait meanwhile."""
LEAST_REPLAY_FRAMES = 32  # not tuned: a bound of calls
"""Frames of the smallest such call: a codec that computes all that was heard anew should not need too many calls."""
MOST_REPLAY_FRAMES = 256  # not tuned: a bound of memory
"""Frames of the largest such call: bounds memory."""
WARM_VOICES = 16  # not tuned: a bound of memory
"""Cloned voices whose codec state, warmed by their reference frames, is kept for the next utterance."""


class Download:
    """The chunks of one codec call on their way to the host, without waiting for the device that computes them."""

    def __init__(self, chunks: list[Tensor]) -> None:
        self.sizes = [chunk.numel() for chunk in chunks]
        """Samples of each."""
        self._done: torch.cuda.Event | None = None
        # one copy for all, since the codec may reuse its buffers; from a GPU into page-locked memory
        whole = chunks[0] if len(chunks) == 1 else torch.cat(chunks)
        self._samples = whole.to("cpu", non_blocking=whole.is_cuda, copy=True)
        if whole.is_cuda:
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(torch.cuda.current_stream(whole.device))

    @property
    def under_way(self) -> bool:
        """:meth:`wait` would have to wait."""
        return self._done is not None and not self._done.query()  # type: ignore[no-untyped-call]

    def wait(self) -> Samples:
        """One chunk after another."""
        if self._done is not None:
            self._done.synchronize()
        return self._samples.numpy()


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """Chunks that the codec was asked for, and that nobody has taken."""

    utterances: Sequence[Utterance]
    download: Download

    @property
    def dry_at(self) -> float:
        """When the first of them to do so runs dry without these chunks; infinite for newcomers."""
        moments = [utterance.progress.playback.dry_at for utterance in self.utterances]
        return min((moment for moment in moments if moment is not None), default=math.inf)


class Piece(NamedTuple):
    """Frames that a codec state hears next, for this utterance."""

    utterance: Utterance
    replay: CodecReplay


class CodecStage:
    """Decodes pending frames and hands out chunks."""

    def __init__(self, state: WorkerState, calls: GuardedCalls) -> None:
        self._state, self._calls = state, calls
        self.seconds = 0.0
        """Spent on codec steps until now."""
        self.round_s = 0.0
        """Seconds that a frame of every running stream takes, with its audio; 0 while that is unknown."""
        self._handed = 0, 0
        """Steps that were handed out since this was last asked, and their frames."""
        self._under_way: list[StepUnderWay] = []
        self._replay_frames = LEAST_REPLAY_FRAMES
        self._warm_states: OrderedDict[bytes, CodecReplay] = OrderedDict()
        self._warm_states_of: object = None
        """The codec that made them."""

    def start(self, chosen: Sequence[Utterance], *, wait: bool = False) -> None:
        """Have the frames of these made audio.

        A chunk that is ready is handed out. One that a device still computes is left to :meth:`collect` or to the next
        step, which waits for the one before: the device always has its next step, and arrivals are looked at between
        two. ``wait``: hand out all there is, such as the last of the first chunks.
        """
        trial = next((one for one in chosen if one.suspected and one.is_suspect("codec")), None)
        began_at = self._state.clock()
        try:
            self._start(chosen if trial is None else [trial])
            self._collect(self._under_way[:-1])
            computing = self._under_way and self._under_way[-1].download.under_way
            if wait or trial is not None or not computing:
                self._collect(self._under_way)
        except Exception:
            self._lose_what_is_under_way()
            raise
        self.seconds += self._state.clock() - began_at

    def take_counts(self) -> tuple[int, int]:
        """Return how many steps were handed out since the last call, and the frames of all of them."""
        counts, self._handed = self._handed, (0, 0)
        return counts

    def restore_states(self) -> bool:
        """Bring codec states that were lost, or that must hear a voice's reference first, up to date: one call between
        two launches for others, for those whose playback runs dry first. Returns whether there were any.
        """
        without = [one for one in self._state.utterances if one.codec_state is None]
        behind = [one for one in without if one.ready > one.given]
        if not behind:
            return False
        behind.sort(key=attrgetter("deadline"))
        pieces: list[Piece] = []
        try:
            for utterance in behind:
                self._plan(utterance, pieces)
            if pieces:
                self._hear(pieces)
            for utterance in behind:
                replay = utterance.replay
                if replay is not None and not replay.left:
                    utterance.codec_state, utterance.replay = replay.state, None
                    utterance.update(self._state.clock())
        except Exception:
            self._lose_what_is_under_way()
            raise
        return bool(pieces)

    def open_states(self, utterances: Sequence[Utterance]) -> None:
        """For those that have heard nothing, while the device makes their first frames."""
        for utterance in utterances:
            if utterance.codec_state is not None or utterance.replay is not None or utterance.delivered:
                continue
            if utterance.codec_voice.reference_codes is None:
                try:
                    utterance.codec_state = self._open(utterance)
                except REQUEST_ERRORS as error:
                    utterance.fail(error)
                utterance.update(self._state.clock())

    def collect(self, dry_before: float = math.inf) -> bool:
        """Hand out the chunks under way, as far as they have arrived or somebody's playback runs dry before this
        moment; says whether there were any.
        """
        steps = [step for step in self._under_way if not step.download.under_way or step.dry_at <= dry_before]
        if not steps:
            return False
        began_at = self._state.clock()
        try:
            self._collect(steps)
        except Exception:
            self._lose_what_is_under_way()
            raise
        self.seconds += self._state.clock() - began_at
        return True

    def _collect(self, steps: Sequence[StepUnderWay]) -> None:
        for step in list(steps):
            self._hand_out_all(step)
            self._under_way.remove(step)

    def _lose_what_is_under_way(self) -> None:
        for step in self._under_way:
            for utterance in step.utterances:
                utterance.rewind_codec()
        self._under_way = []
        self._state.update_all()

    def _start(self, utterances: Sequence[Utterance]) -> None:
        states = [utterance.codec_state for utterance in utterances if utterance.codec_state is not None]
        codes = _codes_to_give(utterances)
        try:
            download = self._decode(states, codes, utterances)
        except REQUEST_ERRORS as error:
            if len(utterances) == 1:
                utterances[0].fail(error)
                utterances[0].update(self._state.clock())
                return
            for utterance in utterances:  # no state advanced: find out whom it concerns
                self._start([utterance])
            return
        now = self._state.clock()
        for utterance in utterances:
            utterance.given = utterance.ready
            utterance.update(now)
        self._under_way.append(StepUnderWay(utterances, download))

    def _decode(self, states: Sequence[CodecState], codes: Sequence[Tensor], served: Sequence[Utterance]) -> Download:
        return self._calls.step(
            self._state.codec, "decode", lambda codec: Download(codec.decode(states, codes)), served, ends=False
        )

    def _arrived(self, download: Download, served: Sequence[Utterance]) -> tuple[Samples, list[float]]:
        """The chunks, one after another, and the level of each frame."""
        samples = self._calls.step(self._state.codec, "decode", lambda _: download.wait(), served)
        if not peak(samples) <= 1.0:
            role, chunks = self._state.codec, np.split(samples, list(accumulate(download.sizes))[:-1])
            for index, chunk in enumerate(chunks):
                complaint = samples_complaint(peak(chunk))
                if complaint is not None:
                    raise Fault(role, role.last, f"codec chunk {index} {complaint}", served)
            np.clip(samples, -1.0, 1.0, out=samples)
        return samples, frame_levels(samples)

    # ---- states

    def _plan(self, utterance: Utterance, pieces: list[Piece]) -> None:
        """Add what the utterance's codec state must hear next to the pieces of this call; its audio is discarded."""
        try:
            if utterance.replay is None:
                utterance.replay = self._new_replay(utterance, pieces)
            if utterance.replay is not None:
                self._add(Piece(utterance, utterance.replay), pieces)
        except REQUEST_ERRORS as error:
            utterance.fail(error)
            utterance.update(self._state.clock())

    def _new_replay(self, utterance: Utterance, pieces: list[Piece]) -> CodecReplay | None:
        """Return a replay of what was delivered, from a state at the start of speech. An in-context voice has heard its
        reference before, which is heard once a voice; ``None`` until it was heard.
        """
        voice = utterance.codec_voice
        reference, key = voice.reference_codes, voice.reference_digest
        if reference is None or key is None:
            return self._replay(self._open(utterance), utterance)
        if self._warm_states_of is not self._state.codec.loaded:
            self._warm_states, self._warm_states_of = OrderedDict(), self._state.codec.loaded
        if key not in self._warm_states:
            if pieces:  # it is heard in a call of its own; until then, nothing of this voice is kept
                return None
            self._warm_states[key] = CodecReplay(self._open(utterance), reference, served=[utterance])
            if len(self._warm_states) > WARM_VOICES:
                self._warm_states.popitem(last=False)
        self._warm_states.move_to_end(key)
        warm = self._warm_states[key]
        self._add(Piece(utterance, warm), pieces)
        if warm.left:
            return None
        state = self._calls.step(self._state.codec, "copy of a state", lambda _: warm.state.copy(), [utterance])
        return self._replay(state, utterance)

    def _replay(self, state: CodecState, utterance: Utterance) -> CodecReplay:
        delivered = torch.tensor(utterance.frames[utterance.codec_from : utterance.delivered], dtype=torch.int64)
        unwatched, utterance.unwatched = utterance.unwatched, False
        return CodecReplay(state, delivered, utterance.codec_from, watched_for=utterance if unwatched else None)

    def _open(self, utterance: Utterance) -> CodecState:
        return self._calls.step(self._state.codec, "open", lambda codec: codec.open(), [utterance])

    def _add(self, piece: Piece, pieces: list[Piece]) -> None:
        """Add a piece where something is left to hear and the call has room. Frames that were never audio may make the
        codec fail: they go in a call of their own.
        """
        replay = piece.replay
        frames = sum(min(other.replay.left, LEAST_REPLAY_FRAMES) for other in (*pieces, piece))
        full = frames > self._replay_frames or len(pieces) == self._state.codec.instance.max_streams
        alone = any(replay.served or other.replay.served or other.replay is replay for other in pieces)
        if replay.left and not (pieces and (full or alone)):
            pieces.append(piece)

    def _hear(self, pieces: Sequence[Piece]) -> None:
        """Let the states of these hear some frames more, all in one call."""
        began_at, most = self._state.clock(), max(LEAST_REPLAY_FRAMES, self._replay_frames // len(pieces))
        codes = [piece.replay.codes[piece.replay.heard :][:most] for piece in pieces]
        served = pieces[0].replay.served
        try:
            _, levels = self._arrived(self._decode([piece.replay.state for piece in pieces], codes, served), served)
        except REQUEST_ERRORS as error:
            if len(pieces) > 1:
                for piece in pieces:  # no state advanced: find out whom it concerns
                    self._hear([piece])
                return
            pieces[0].utterance.fail(error)
            pieces[0].utterance.update(self._state.clock())
            return
        first = 0
        for piece, part in zip(pieces, codes, strict=True):
            replay, end = piece.replay, first + len(part)
            if replay.watched_for is not None:
                replay.watched_for.watch_audio(levels[first:end], replay.first + replay.heard)
            replay.heard, first = replay.heard + len(part), end
        fits = REPLAY_S * first / max(self._state.clock() - began_at, 1e-6)
        self._replay_frames = min(max(int(fits), LEAST_REPLAY_FRAMES), MOST_REPLAY_FRAMES)

    # ---- chunks

    def _hand_out_all(self, step: StepUnderWay) -> None:
        utterances, download = step.utterances, step.download
        samples, levels = self._arrived(download, utterances)
        self._handed = self._handed[0] + 1, self._handed[1] + len(levels)
        now = self._state.clock()
        waiters: list[Waiter] = []
        start = 0
        for utterance, chunk in zip(utterances, download.sizes, strict=True):
            end = start + chunk // FRAME_SAMPLES
            if utterance.given > utterance.delivered:  # else it was cancelled meanwhile
                pcm = samples[start * FRAME_SAMPLES : end * FRAME_SAMPLES].copy()  # who keeps one keeps no other
                waiters += self._hand_out(utterance, pcm, levels[start:end], now)
                utterance.update(now)
            start = end
        wake(waiters)
        if utterances[0].suspected:
            pass_trial(self._state.utterances, self._state.codec, utterances[0])

    def _hand_out(self, utterance: Utterance, pcm: Samples, levels: list[float], now: float) -> list[Waiter]:
        """Hand out a chunk; returns the waiters to wake."""
        state, progress, first, frames = self._state, utterance.progress, utterance.delivered, len(levels)
        waiters = hand_out_speech(state, utterance, pcm, now)
        utterance.chunking.plan_next(frames, progress.playback.ahead(now), state.costs.most_frames, self.round_s)
        reason, decoder = utterance.watch_audio(levels, first), utterance.decoder
        if reason is not None and decoder is not None and utterance.ending is None:
            logger.warning("stream with seed %d runs away and is cut: %s", progress.seed, reason)
            utterance.ends.append(StreamEnd(len(utterance.frames), "runaway"))
            end_segment(state, utterance, decoder, "runaway")
        return waiters


def peak(samples: Samples) -> float:
    """The largest absolute value; NaN where there is one."""
    return max(float(samples.max()), -float(samples.min()))


def _codes_to_give(utterances: Sequence[Utterance]) -> list[Tensor]:
    """For each ``[frames, code groups]`` int64: what the codec was not given. One conversion for all."""
    fresh = [utterance.frames[utterance.given : utterance.ready] for utterance in utterances]
    codes = np.fromiter(chain.from_iterable(chain.from_iterable(fresh)), np.int64).reshape(-1, len(fresh[0][0]))
    return list(torch.split(torch.from_numpy(codes), list(map(len, fresh))))
