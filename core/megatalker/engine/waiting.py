"""Requests that wait for a prefill: their places in the queue, and who goes into the next prefill batch."""

import math
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, takewhile

from megatalker.engine.admission import (
    AdmissionLimits,
    Grant,
    first_of,
    grants,
    is_owed,
    queue_refusal,
    waited_too_long,
)
from megatalker.engine.scheduler import PrefillLaunch, StreamStatus, fitting
from megatalker.engine.state import WorkerState
from megatalker.engine.utterance import Utterance
from megatalker.settings import Settings

MOST_LAUNCH_ROWS = 768  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Rows of prompts in one launch: the next ones are built while a device computes these. A longer prompt is a launch by
itself."""


class WaitingRequests:
    """Chooses among utterances that need a prefill."""

    def __init__(self, state: WorkerState, settings: Settings, paused_s: Callable[[], float]) -> None:
        """``paused_s``: how long the process was stopped until now."""
        self._state, self._settings, self._paused_s = state, settings, paused_s
        self._left_over: list[Grant] = []
        """Chosen for the batch that is under way, after its latest launch."""

    def enter(self, utterance: Utterance) -> None:
        """Its first text has come: it has a place in the queue from now on, or ends where there is none."""
        state = self._state
        others = [one for one in state.utterances if one is not utterance]
        error = queue_refusal(others, utterance, self._limits, state.throughput, state.clock())
        if error is not None:
            utterance.end("error", error)

    def resume(self, utterance: Utterance) -> None:
        """It goes on from another engine: it holds a slot at once where one is free, whatever can be sustained."""
        utterance.admitted = len(self._holding) < self._most_rows

    def is_owed(self, new: Sequence[Utterance]) -> bool:
        """Whether one of them gets a row of another owner, or before other owners, whatever those need."""
        return len({one.owner for one in self._state.utterances}) > 1 and is_owed(new, self._holding)

    def first(self, new: Sequence[Utterance]) -> Utterance:
        """Return the one of them that gets the next slot."""
        return new[0] if len(new) == 1 else first_of(new, self._holding, self._state.served)

    def next_launch(self, asked: PrefillLaunch, now: float, begun: int = 0, rows: int = 0) -> list[Grant]:
        """Return who begins or continues in the next launch of a batch in which ``begun`` streams with ``rows`` have
        begun: those that are due alone; else those that hold a row of the backend, then others that get one.
        """
        chosen = [grant for grant in self._left_over if grant.taker.ending is None] if begun else []
        chosen = chosen or self._choose(asked, now, begun, rows)
        each = accumulate(grant.taker.prompt_rows for grant in chosen)
        count = max(1, sum(1 for _ in takewhile(MOST_LAUNCH_ROWS.__ge__, each)))
        self._left_over = chosen[count:]
        return chosen[:count]

    @property
    def has_left_over(self) -> bool:
        """More were chosen than fitted into the last launch."""
        return bool(self._left_over)

    def end_late(self, new: Sequence[Utterance], chosen: Collection[Grant], now: float) -> None:
        """End those that have waited too long for their first row, and are not among the chosen."""
        if self._settings.max_wait_s is None:
            return
        taken = {id(grant.taker) for grant in (*chosen, *self._left_over)}
        for utterance in new:
            if now > self._patience_ends(utterance) and id(utterance) not in taken and utterance.ending is None:
                state = self._state
                error = waited_too_long(state.utterances, utterance, self._limits, state.throughput, now)
                utterance.end("error", error)

    def rows_change_at(self, new: Sequence[Utterance]) -> float:
        """When one of them may borrow a row, or has waited too long, though nothing else happens."""
        if not new:
            return math.inf
        moments = [one.lends_at for one in self._holding] + [self._patience_ends(one) for one in new]
        return min(moments, default=math.inf)

    def _choose(self, asked: PrefillLaunch, now: float, begun: int, rows_begun: int) -> list[Grant]:
        state, talker = self._state, self._state.talker.instance
        waiting = [one for one in state.utterances if one.status is StreamStatus.WAITING]
        resuming = [Grant(one) for one in waiting if one.admitted]
        resuming.sort(key=lambda grant: grant.taker.deadline)
        granted = list[Grant]()
        if asked.streams > begun or asked.owed:
            new, holding = [one for one in waiting if not one.admitted], self._holding
            slots = min(self._most_rows, len(holding) + max(0, asked.streams - begun))
            granted = grants(new, holding, slots, now, served=state.served, prompt_rows=asked.rows - rows_begun)
        trial = next((grant for grant in resuming + granted if grant.taker.is_suspect("talker")), None)
        if trial is not None:
            return [trial]
        due = [grant for grant in granted if grant.due]
        if not talker.capabilities.batch:
            return (due + resuming + granted)[:1]
        first, left = due or resuming, asked.rows - rows_begun
        rows = _prompt_rows(first)
        chosen, least = first[: max(0 if begun else 1, fitting(rows, left))], 0 if begun or first else 1
        if granted and not due:
            left -= sum(rows[: len(chosen)])
            count = min(fitting(_prompt_rows(granted), left), asked.streams - begun)
            chosen += granted[: int(max(least, count))]
        return chosen

    def _patience_ends(self, utterance: Utterance) -> float:
        """One that has begun waits as long as it must."""
        max_wait_s = self._settings.max_wait_s
        if max_wait_s is None or utterance.begun:
            return math.inf
        return utterance.progress.requested_at + max_wait_s + self._paused_s() - utterance.paused_before_s

    @property
    def _holding(self) -> list[Utterance]:
        return [one for one in self._state.utterances if one.admitted]

    @property
    def _limits(self) -> AdmissionLimits:
        return AdmissionLimits.of(self._settings, self._most_rows, self._state.costs)

    @property
    def _most_rows(self) -> int:
        """Rows that there are."""
        limits = self._settings.max_streams, self._state.talker.instance.max_streams, self._state.talker_work.row_limit
        return min(limit for limit in limits if limit is not None)


def _prompt_rows(grants: Sequence[Grant]) -> list[int]:
    return [grant.taker.prompt_rows for grant in grants]
