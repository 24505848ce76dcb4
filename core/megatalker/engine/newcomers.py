"""Which streams begin, or go on, in the next launch of prompts."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile

from megatalker.engine.admission import AdmissionLimits, Grant, grants, is_owed, queue_refusal, waited_too_long
from megatalker.engine.scheduling import Room, fitting, urgency
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance, candidate, playing
from megatalker.settings import Settings

MOST_LAUNCH_ROWS = 768
"""Of prompts in one launch: the next ones are built while a device computes these. A longer prompt is a launch by
itself.
"""
NO_ROOM, ALL_ROOM = Room(0.0, 0.0), Room(math.inf, math.inf)


class Newcomers:
    """Chooses among streams that need a prefill."""

    def __init__(self, state: WorkerState, settings: Settings, paused_s: Callable[[], float]) -> None:
        """``paused_s``: how long the process was stopped until now."""
        self._state, self._settings, self._paused_s = state, settings, paused_s
        self.pressed = self.beside = False
        """There are newcomers, and streams whose playback would run dry during their pass; or that play at all."""
        self.gathering = False
        """Newcomers are kept waiting for others."""
        self._chosen: list[Grant] = []
        """Who begins in this pass, after its next launch."""

    def next_launch(self, now: float, begun: int = 0, rows_begun: int = 0) -> list[Grant]:
        """Whose decoder streams begin or continue in the next launch of a pass that began ``now``, with so many streams
        and rows: those that are due alone; else those that hold a row of the backend, then others by turns while there
        are such rows. One that is not among them, and has waited too long for its first row, ends.

        Those others gather until it is their turn, or, where the playback of a started stream would run dry meanwhile,
        until they have credit: each of their passes takes long, and hardly longer for many.
        """
        left_over = [grant for grant in self._chosen if grant.taker.ending is None] if begun else []
        chosen = left_over or self._choose_of_waiting(now, begun, rows_begun)
        rows = accumulate(grant.taker.prompt_rows for grant in chosen)
        count = max(1, sum(1 for _ in takewhile(MOST_LAUNCH_ROWS.__ge__, rows)))
        self._chosen = chosen[count:]
        return chosen[:count]

    @property
    def batches(self) -> bool:
        """The talker takes many streams at about the cost of one."""
        return self._state.talker.instance.capabilities.batch

    @property
    def left_over(self) -> bool:
        """More prompts may begin in this pass than fitted into its last launch."""
        return bool(self._chosen)

    def _choose_of_waiting(self, now: float, begun: int, rows_begun: int) -> list[Grant]:
        waiting = [utterance for utterance in self._state.utterances if utterance.needs_prefill]
        chosen = self._choose(waiting, now, begun, rows_begun)
        taken = {id(grant.taker) for grant in chosen}
        for utterance in waiting:
            left_over = id(utterance) not in taken and not utterance.admitted and utterance.ending is None
            if left_over and now > self._patience_ends(utterance):
                state = self._state
                error = waited_too_long(state.utterances, utterance.owner, self._limits, state.throughput)
                utterance.end("error", error)
        return chosen

    def _choose(self, waiting: Sequence[Utterance], now: float, begun: int, rows_begun: int) -> list[Grant]:
        self.pressed = self.beside = self.gathering = False
        running = [Grant(utterance) for utterance in waiting if utterance.admitted]
        running.sort(key=lambda grant: urgency(candidate(0, grant.taker)))
        new, granted, room = self._in_queue(waiting), list[Grant](), ALL_ROOM
        if new:
            holding = [one for one in self._state.utterances if one.admitted]
            if self.batches and not is_owed(new, holding):
                room = self._room(holding, now, begun, rows_begun)
            self.gathering = room is NO_ROOM  # found out first: who would begin takes longer
            granted = [] if self.gathering else self._with_rows(new, holding, now)
        trial = next((grant for grant in running + granted if grant.taker.is_suspect("talker")), None)
        if trial is not None:
            return [trial]
        due = [grant for grant in granted if grant.due]
        if not self.batches:
            return (due + running + granted)[:1]
        first = due or running
        rows, left = _prompt_rows(first), self._state.pace.most_rows - rows_begun
        chosen = first[: max(0 if begun else 1, fitting(rows, left))]
        if granted and not due:
            left -= sum(rows[: len(chosen)])
            chosen += granted[: self._count(_prompt_rows(granted), left, room, begun, rows_begun)]
        return chosen

    def _room(self, holding: Sequence[Utterance], now: float, begun: int, rows_begun: int) -> Room:
        """For new streams in the next launch, unless on credit; :data:`NO_ROOM`: not on credit either."""
        pace = self._state.pace
        if holding and not begun and not pace.is_open:  # whatever room there is
            return NO_ROOM
        others = playing(self._state.utterances, now)
        rows, streams = pace.room(others, now)
        room = Room(rows - rows_begun, streams - begun)
        self.beside, self.pressed = bool(others), min(room) < 1
        return NO_ROOM if self.pressed and not pace.credit.is_open else room

    def _count(self, rows: Sequence[int], left: int, room: Room, begun: int, rows_begun: int) -> int:
        """How many of those with prompts of so many ``rows`` begin, in ``left`` rows at most."""
        pace = self._state.pace
        count = int(max(0, min(fitting(rows, min(left, room.rows)), room.streams)))
        self.pressed = not count
        on_credit = pace.rows_on_credit() if self.pressed else 0
        if on_credit:
            count = max(0 if begun else 1, fitting(rows, min(left, on_credit - rows_begun)))
        elif self.beside and not begun and not pace.turn.is_open:
            count = 0
        self.gathering = not count
        return count

    def rows_change_at(self) -> float:
        """When one that waits for a row may borrow one, or has waited too long, though nothing else happens."""
        utterances = self._state.utterances
        wishing = [one for one in utterances if one.needs_prefill and not one.admitted]
        if not wishing:
            return math.inf
        moments = [one.lends_at for one in utterances if one.admitted] + list(map(self._patience_ends, wishing))
        return min(moments, default=math.inf)

    def _patience_ends(self, utterance: Utterance) -> float:
        """One that has begun waits as long as it must."""
        max_wait_s = self._settings.max_wait_s
        if max_wait_s is None or utterance.progress.segments:
            return math.inf
        return utterance.progress.requested_at + max_wait_s + self._paused_s() - utterance.paused_before_s

    # ---- who gets a row

    @property
    def _limits(self) -> AdmissionLimits:
        state = self._state
        return AdmissionLimits.of(self._settings, state.talker.instance.max_streams, state.talker_work.row_limit)

    def _in_queue(self, waiting: Sequence[Utterance]) -> list[Utterance]:
        """Those of them without a row. One whose first text came too late for a place in the queue ends."""
        state, limits = self._state, self._limits
        new = [utterance for utterance in waiting if not utterance.admitted]
        for utterance in new:
            if utterance.progress.segments == 0 and utterance.idle_since is not None:
                error = queue_refusal(state.utterances, utterance.owner, limits, state.throughput)
                if error is not None:
                    utterance.end("error", error)
            utterance.idle_since = None
        return [utterance for utterance in new if utterance.ending is None]

    def _with_rows(self, new: Sequence[Utterance], holding: Sequence[Utterance], now: float) -> list[Grant]:
        """Those of them that get a row, and from whom."""
        return grants(self._state.turns.order(new), holding, self._limits.rows, now)


def _prompt_rows(grants: Sequence[Grant]) -> list[int]:
    return [grant.taker.prompt_rows for grant in grants]
