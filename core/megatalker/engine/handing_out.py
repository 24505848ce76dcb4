"""Handing out: each chunk, of speech or of what markup asks for between two segments, goes to its consumer here."""

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.chunks import Progress, Waiter, wake
from megatalker.engine.speech.joints import Joint, silence_after, smooth_beginning
from megatalker.engine.speech.outputs import Chunk, ReachedMark
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance

logger = logging.getLogger(__name__)

Samples = NDArray[np.float32]


def hand_out_speech(state: WorkerState, utterance: Utterance, pcm: Samples, now: float) -> list[Waiter]:
    """Hand out the audio of the frames that the codec was given; returns the waiters to wake."""
    if utterance.edge is not None:
        smooth_beginning(pcm, utterance.edge)
    utterance.edge, utterance.last_sample = None, float(pcm[-1])
    first, last = utterance.delivered, utterance.given
    codes = np.array(utterance.frames[first:last], np.int64) if utterance.request.return_codes else None
    final = utterance.ends_well and last == len(utterance.frames) and not utterance.joints
    return _hand_out(state, utterance, pcm, now, frames=last - first, codes=codes, final=final)


def pass_joints(state: WorkerState) -> bool:
    """Hand out the joints whose turn has come: all audio before them has been handed out. Returns whether there were
    any.
    """
    found = [one for one in state.utterances if one.joints and one.joints[0].frame <= one.delivered]
    waiters: list[Waiter] = []
    for utterance in found:
        now = state.clock()
        while utterance.joints and utterance.joints[0].frame <= utterance.delivered:
            joint = utterance.joints.popleft()
            if joint.voice is not None:
                utterance.change_codec_voice(joint)
            if joint.has_chunk:
                waiters += _hand_out_joint(state, utterance, joint, now)
        utterance.update(now)
    wake(waiters)
    return bool(found)


def _hand_out_joint(state: WorkerState, utterance: Utterance, joint: Joint, now: float) -> list[Waiter]:
    at = utterance.progress.samples
    utterance.prosody = utterance.prosody if joint.prosody is None else joint.prosody
    marks = tuple(ReachedMark(name, at + before) for name, before in joint.marks)
    pcm = silence_after(utterance.last_sample, joint.silence)
    if joint.silence:
        utterance.edge = utterance.last_sample = float(pcm[-1])
    final = utterance.ends_well and utterance.delivered == len(utterance.frames) and not utterance.joints
    return _hand_out(state, utterance, pcm, now, frames=0, codes=None, final=final, marks=marks)


def _hand_out(
    state: WorkerState,
    utterance: Utterance,
    pcm: Samples,
    now: float,
    *,
    frames: int,
    codes: NDArray[np.int64] | None,
    final: bool,
    marks: Sequence[ReachedMark] = (),
) -> list[Waiter]:
    progress = utterance.progress
    chunk = Chunk(
        index=progress.chunks,
        pcm=pcm,
        frames=frames,
        sample_offset=progress.samples,
        codes=codes,
        requested_at=progress.requested_at,
        decoded_at=now,
        delivered_at=now,
        final=final,
        ends=() if codes is None else utterance.take_ends(),
        marks=tuple(marks),
        prosody=utterance.prosody,
    )
    _log(chunk, progress)
    progress.note_chunk(now, frames, len(pcm), utterance.prosody.rate)
    state.counters.chunks += 1
    return utterance.chunks.put(chunk)


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
