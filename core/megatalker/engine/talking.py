"""The talker's share of a tick: prompts in, frames out."""

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial

from megatalker.engine.board import Begun, Board
from megatalker.engine.calls import REQUEST_ERRORS, Calls, Fault
from megatalker.engine.scheduler import Candidate, prefills_per_tick, select, urgency
from megatalker.engine.seeds import segment_seed
from megatalker.engine.segment import Codes, Segment
from megatalker.engine.session import Session
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.interfaces import DecodeStep, StreamHandle
from megatalker.plugins.checked import CheckedTalker
from megatalker.prompt import PromptBuilder

logger = logging.getLogger(__name__)


class Talking:
    """Prefill, decode and release for all sessions of a board."""

    def __init__(self, board: Board, calls: Calls, builder: PromptBuilder, max_streams: int) -> None:
        self._board, self._calls, self._builder = board, calls, builder
        self._max_streams = max_streams

    def release(self) -> bool:
        """Free the rows of streams that nobody needs any more; says whether there were any."""
        did = bool(self._board.to_release)
        while self._board.to_release:
            handle = self._board.to_release.pop()
            try:
                self._calls.step(self._board.talker, "release", partial(_release, handle))
            except REQUEST_ERRORS as error:  # it refuses to release what it handed out itself
                name = self._board.talker.last
                raise Fault(self._board.talker, name, f"release raised {type(error).__name__}: {error}") from error
        return did

    def read_text(self) -> bool:
        """Turn text that arrived for running segments into rows; says whether there was any."""
        did = False
        for session in self._board.sessions:
            segment = session.segment
            if segment is None or segment.complete or session.ending is not None:
                continue
            if segment.new_ids or segment.passage.complete:
                self._read_text(session, segment)
                did = True
        return did

    def next_prompts(self) -> list[Session]:
        """Whose decoder streams begin or continue in this tick: running utterances first, then newcomers while there
        are rows.
        """
        sessions = self._board.sessions
        running = [session for session in sessions if session.admitted and session.needs_prefill]
        running.sort(key=lambda session: urgency(_candidate(0, session)))
        room = self._room()
        newcomers = [session for session in sessions if not session.admitted and session.needs_prefill][: max(0, room)]
        return (running + newcomers)[: prefills_per_tick(batch=self._talker.capabilities.batch)]

    def prefill(self, chosen: Sequence[Session]) -> None:
        """Begin or continue these decoder streams."""
        for session in chosen:
            session.admitted = True
            self._prefill(session)

    def begin(self, now: float) -> bool:
        """Start one frame for each of the streams chosen for this tick; says whether there were any."""
        sessions = self._board.sessions
        ready = []
        for index, session in enumerate(sessions):
            if session.decodable and now >= session.held_until:
                ready.append(_candidate(index, session))
            elif session.starved:
                session.chunking.restart()
                session.record.playback.excuse()
            elif session.admitted:
                session.chunking.rest()
                if session.mailbox.is_full():
                    session.record.playback.excuse()
        talker = self._talker
        limit = talker.max_streams or len(ready)
        chosen = [sessions[index] for index in select(ready, batch=talker.capabilities.batch, limit=limit)]
        if chosen:
            self._begin(chosen)
        return bool(chosen)

    def take(self) -> None:
        """Wait for the frames that were begun, if any, and give them to their streams."""
        begun, self._board.begun = self._board.begun, None
        if begun is not None:
            self._take(begun)

    # ---- prefill

    @property
    def _talker(self) -> CheckedTalker:
        loaded = self._board.talker.loaded
        assert loaded is not None, "a tick runs only with both slots filled"
        return loaded.instance

    def _room(self) -> int:
        limits = (self._max_streams, self._talker.max_streams, self._board.row_limit)
        admitted = sum(session.admitted for session in self._board.sessions)
        return min(limit for limit in limits if limit is not None) - admitted

    def _read_text(self, session: Session, segment: Segment) -> None:
        ids = segment.new_ids
        try:
            rows = self._calls.device("text rows", partial(self._builder.text_rows, ids)) if ids else None
        except Exception as error:  # whatever it is, it concerns this utterance alone
            session.end("error", error)
            return
        segment.extend(rows, self._builder.end_row)

    def _prefill(self, session: Session) -> None:
        try:
            segment = session.segment or self._calls.device("prompt", partial(self._new_segment, session))
            segment.max_frames = frames_that_fit(
                len(segment.prompt.embeds), session.request.max_frames, self._talker.max_positions
            )
            request = self._calls.device("prompt", partial(segment.request, self._builder))
        except Exception as error:  # whatever it is, it concerns this utterance alone
            session.end("error", error)
            return
        if len(segment.codes) >= segment.max_frames:  # this backend has fewer positions than the one before
            session.end("max_frames")
            return
        segments = [other.segment for other in self._board.sessions if other.segment is not None]
        held = sum(other.handle is not None for other in segments)
        try:
            (handle,) = self._calls.step(self._board.talker, "prefill", lambda talker: talker.prefill([request]))
        except CapacityError as error:
            self._no_room(session, error, held)
            return
        except InvalidRequestError as error:
            session.end("error", error)
            return
        segment.handle = handle
        if session.segment is None:
            session.script.begin()
            session.segment = segment
            session.record.segments += 1

    def _new_segment(self, session: Session) -> Segment:
        request, passage = session.request, session.script.upcoming
        seed = segment_seed(session.record.seed, session.record.segments)
        prompt = self._builder.build(
            passage.ids,
            voice=request.voice,
            language=request.language,
            instruct=request.instruct,
            layout=request.layout,
            complete=passage.complete,
        )
        return Segment.of(passage, len(passage.ids), prompt, dataclasses.replace(request.sampling, seed=seed))

    def _no_room(self, session: Session, error: CapacityError, held: int) -> None:
        """The backend holds fewer streams than it promised: remember how many, and let the stream wait for one."""
        if held == 0:
            session.end("error", error)
            return
        logger.warning("%s backend holds only %d streams now: %s", self._board.talker.last, held, error)
        self._board.row_limit = held
        session.admitted = False

    # ---- decode

    def _begin(self, chosen: Sequence[Session]) -> None:
        shares = [(session, session.segment) for session in chosen if session.segment is not None]
        steps = [_step(segment) for _, segment in shares]
        try:
            finish = self._calls.step(self._board.talker, "decode", lambda talker: talker.decode(steps), ends=False)
        except REQUEST_ERRORS as error:
            self._sort_out(chosen, error)
            return
        self._board.begun = Begun(shares, finish)

    def _take(self, begun: Begun) -> None:
        try:
            frames = self._calls.step(self._board.talker, "decode", lambda _: begun.finish())
        except REQUEST_ERRORS as error:
            self._sort_out([session for session, _ in begun.shares], error)
            return
        now = self._board.clock()
        for (session, segment), frame in zip(begun.shares, frames, strict=True):
            if session.ending is not None:  # by its audio, meanwhile
                continue
            if frame.codes is None:
                self._end_segment(session, segment)
            else:
                self._add(session, segment, frame.codes, now)

    def _sort_out(self, chosen: Sequence[Session], error: Exception) -> None:
        """A step was refused and nobody advanced: find out whom it concerns."""
        if len(chosen) == 1:
            chosen[0].end("error", error)
            return
        for session in chosen:
            self._begin([session])
            self.take()

    def _add(self, session: Session, segment: Segment, codes: Codes, now: float) -> None:
        text_done = segment.text_done
        segment.codes.append(codes)
        session.pending.append(codes)
        session.chunking.note_frame(now)
        self._board.counters.frames += 1
        reason = session.guard.frame(codes, text_done) if session.guard is not None else None
        if reason is not None:
            logger.warning("stream with seed %d runs away and is ended: %s", session.record.seed, reason)
            session.end("runaway")
        elif len(segment.codes) >= segment.max_frames:
            session.end("max_frames")

    def _end_segment(self, session: Session, segment: Segment) -> None:
        """End of speech: go on with what was not read, then with what follows; end when there is nothing."""
        session.script.end(segment.ids_fed)
        retire(self._board, session)
        session.chunking.rest()
        if session.script.exhausted:
            session.end("eos")


def retire(board: Board, session: Session) -> None:
    """The session's decoder stream is over; its rows are freed in this tick or at the start of the next."""
    segment, session.segment = session.segment, None
    if segment is not None and segment.handle is not None:
        board.to_release.append(segment.handle)


def frames_that_fit(prompt_rows: int, max_frames: int, max_positions: int) -> int:
    """Frames that a segment may have: those asked for, or as many as the backend has positions after the prompt.

    Raises:
        InvalidRequestError: the prompt alone fills the positions.
    """
    fit = max_positions - prompt_rows
    if fit < 1:
        raise InvalidRequestError(
            f"the prompt takes {prompt_rows} rows, this backend holds {max_positions} positions per stream and needs "
            "at least one for speech; shorten the text, instruction or reference audio, "
            "or raise the backend's max_positions"
        )
    return min(max_frames, fit)


def _step(segment: Segment) -> DecodeStep:
    row = segment.next_row
    assert segment.handle is not None, "only decodable sessions are chosen"
    assert row is not None, "as above"
    return DecodeStep(segment.handle, row)


def _release(handle: StreamHandle, talker: CheckedTalker) -> None:
    talker.release(handle)


def _candidate(index: int, session: Session) -> Candidate:
    return Candidate(index, session.record.playback.dry_at, session.record.requested_at)
