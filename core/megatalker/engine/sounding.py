"""The codec's share of a tick: frames in, chunks out."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker.engine.board import Board
from megatalker.engine.calls import REQUEST_ERRORS, Calls
from megatalker.engine.checks import check_pcm
from megatalker.engine.facts import Chunk
from megatalker.engine.session import Session
from megatalker.interfaces import Codec, CodecState
from megatalker.model_config import FRAME_SAMPLES, FRAME_SECONDS

logger = logging.getLogger(__name__)

REPLAY_FRAMES = 256
"""Frames of one call when a codec state is brought up to date: bounds memory."""


class Sounding:
    """Decodes pending frames and hands out chunks."""

    def __init__(self, board: Board, calls: Calls) -> None:
        self._board, self._calls = board, calls

    def deliver(self, now: float) -> bool:
        """Turn the pending frames of every due session into one chunk each; says whether there were any."""
        due = [session for session in self._board.sessions if session.due(now)]
        loaded = self._board.codec.loaded
        limit = (loaded.capabilities.max_streams if loaded else None) or len(due)
        for start in range(0, len(due), max(1, limit)):
            self._deliver(due[start : start + limit])
        return bool(due)

    def _deliver(self, sessions: Sequence[Session]) -> None:
        ready = [session for session in sessions if self._prepare(session)]
        if not ready:
            return
        states = [session.codec_state for session in ready if session.codec_state is not None]
        try:
            chunks = self._decode(states, [session.pending_codes() for session in ready])
        except REQUEST_ERRORS as error:
            if len(ready) == 1:
                _refuse(ready[0], error)
                return
            for session in ready:  # no state advanced: find out whom it concerns
                self._deliver([session])
            return
        now = self._board.clock()
        for session, pcm in zip(ready, chunks, strict=True):
            self._hand_out(session, pcm, now)

    def _prepare(self, session: Session) -> bool:
        """Give the session a codec state that has heard what it should have heard; discards the audio."""
        if session.codec_state is not None:
            return True
        try:
            state: CodecState = self._calls.step(self._board.codec, "open", lambda codec: codec.open())
            for start in range(0, len(session.heard), REPLAY_FRAMES):
                self._decode([state], [torch.tensor(session.heard[start : start + REPLAY_FRAMES])])
        except REQUEST_ERRORS as error:
            _refuse(session, error)
            return False
        session.codec_state = state
        return True

    def _decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        def decode(codec: Codec) -> list[Tensor]:
            chunks = codec.decode(states, codes)
            return [chunk.cpu() for chunk in chunks] if isinstance(chunks, list) else chunks

        return self._calls.step(self._board.codec, "decode", decode, lambda chunks: check_pcm(chunks, codes))

    def _hand_out(self, session: Session, samples: Tensor, now: float) -> None:
        record, frames = session.record, len(session.pending)
        pcm: NDArray[np.float32] = np.array(samples.numpy(), dtype=np.float32)  # a copy: the codec may reuse its buffer
        codes = np.array(session.pending, dtype=np.int64) if session.request.return_codes else None
        chunk = Chunk(
            index=record.chunks,
            pcm=pcm,
            frames=frames,
            sample_offset=record.frames * FRAME_SAMPLES,
            codes=codes,
            requested_at=record.requested_at,
            decoded_at=now,
            delivered_at=now,
        )
        text_done = _text_was_done(session, frames)
        session.heard += session.pending
        session.pending = []
        record.playback.deliver(now, frames * FRAME_SECONDS)
        session.chunking.note_chunk(frames, record.playback.ahead(now))
        record.frames, record.chunks, record.last_decoded_at = record.frames + frames, record.chunks + 1, now
        self._board.counters.chunks += 1
        session.mailbox.put(chunk)
        reason = session.guard.audio(pcm, text_done) if session.guard is not None else None
        if reason is not None and session.ending is None:
            logger.warning("stream with seed %d runs away and is ended: %s", record.seed, reason)
            session.end("runaway")


def _text_was_done(session: Session, frames: int) -> bool:
    """All text had been fed before the last ``frames`` frames."""
    segment = session.segment
    return segment is not None and segment.complete and len(segment.codes) - frames >= len(segment.rows)


def _refuse(session: Session, error: Exception) -> None:
    session.pending = []
    session.ending, session.error = "error", error
