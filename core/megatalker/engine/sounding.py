"""The codec's share of a tick: frames in, chunks out.

A device may still compute a chunk when the next frame is begun: what was started in one tick is collected in the next.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS
from megatalker.engine.board import Board
from megatalker.engine.calls import REQUEST_ERRORS, Calls
from megatalker.engine.checks import check_samples
from megatalker.engine.download import Download
from megatalker.engine.facts import Chunk
from megatalker.engine.session import Session
from megatalker.interfaces import CodecState

logger = logging.getLogger(__name__)

REPLAY_FRAMES = 256
"""Frames of one call when a codec state is brought up to date: bounds memory."""


class Sounding:
    """Decodes pending frames and hands out chunks."""

    def __init__(self, board: Board, calls: Calls) -> None:
        self._board, self._calls = board, calls
        self._under_way: list[tuple[Sequence[Session], Download]] = []

    def start(self, now: float) -> bool:
        """Have one chunk made of the pending frames of every due session; says whether there were any.

        A chunk that is ready is handed out, one that a device still computes is left to :meth:`collect`.
        """
        due = [session for session in self._board.sessions if session.due(now)]
        loaded = self._board.codec.loaded
        limit = (loaded.instance.max_streams if loaded else None) or len(due)
        try:
            for start in range(0, len(due), max(1, limit)):
                self._start(due[start : start + limit])
        except Exception:
            self._lose_what_is_under_way()
            raise
        return bool(due)

    def collect(self) -> bool:
        """Wait for the chunks under way and hand them out; says whether there were any."""
        did = bool(self._under_way)
        try:
            for sessions, download in self._under_way:
                self._hand_out_all(sessions, download)
        except Exception:
            self._lose_what_is_under_way()
            raise
        self._under_way = []
        return did

    def _lose_what_is_under_way(self) -> None:
        for sessions, _ in self._under_way:
            for session in sessions:
                session.sound_again()
        self._under_way = []

    def _start(self, sessions: Sequence[Session]) -> None:
        ready = [session for session in sessions if self._prepare(session)]
        if not ready:
            return
        states = [session.codec_state for session in ready if session.codec_state is not None]
        try:
            download = self._decode(states, [session.pending_codes() for session in ready])
        except REQUEST_ERRORS as error:
            if len(ready) == 1:
                _refuse(ready[0], error)
                return
            for session in ready:  # no state advanced: find out whom it concerns
                self._start([session])
            return
        for session in ready:
            session.sounding = len(session.pending)
        if download.under_way:
            self._under_way.append((ready, download))
        else:
            self._hand_out_all(ready, download)

    def _prepare(self, session: Session) -> bool:
        """Give the session a codec state that has heard what it should have heard; discards the audio."""
        if session.codec_state is not None:
            return True
        try:
            state: CodecState = self._calls.step(self._board.codec, "open", lambda codec: codec.open())
            for start in range(0, len(session.heard), REPLAY_FRAMES):
                self._arrived(self._decode([state], [torch.tensor(session.heard[start : start + REPLAY_FRAMES])]))
        except REQUEST_ERRORS as error:
            _refuse(session, error)
            return False
        session.codec_state = state
        return True

    def _decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> Download:
        return self._calls.step(
            self._board.codec,
            "decode",
            lambda codec: Download(codec.decode(states, codes)),
            ends=False,
        )

    def _arrived(self, download: Download) -> list[Tensor]:
        return self._calls.step(self._board.codec, "decode", lambda _: download.wait(), check_samples)

    def _hand_out_all(self, sessions: Sequence[Session], download: Download) -> None:
        chunks = self._arrived(download)
        now = self._board.clock()
        for session, samples in zip(sessions, chunks, strict=True):
            if session.sounding:
                self._hand_out(session, samples, now)

    def _hand_out(self, session: Session, samples: Tensor, now: float) -> None:
        record, frames = session.record, session.sounding
        sounded, session.pending, session.sounding = session.pending[:frames], session.pending[frames:], 0
        pcm: NDArray[np.float32] = np.array(samples.numpy(), dtype=np.float32)  # a copy: the codec may reuse its buffer
        codes = np.array(sounded, dtype=np.int64) if session.request.return_codes else None
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
        session.heard += sounded
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
    """All text had been fed before the ``frames`` frames that are handed out now."""
    segment = session.segment
    before = frames + len(session.pending)
    return segment is not None and segment.complete and len(segment.codes) - before >= len(segment.rows)


def _refuse(session: Session, error: Exception) -> None:
    session.drop_pending()
    session.ending, session.error = "error", error
