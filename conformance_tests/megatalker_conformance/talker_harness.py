"""Holds a decoder to schedules: runs them, and reports the shortest one that goes wrong."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import NoReturn

import torch

from megatalker.errors import MegatalkerError
from megatalker.plugins.checked import CheckedTalker
from megatalker_conformance.promises import Mismatch, Promise, broken
from megatalker_conformance.scenarios import ScenarioPool
from megatalker_conformance.schedules import Action, ScheduleWriter, described, only, smaller, streams, tidied
from megatalker_conformance.shortening import shortened
from megatalker_conformance.talker_executor import Comparison, OracleComparison, TalkerExecutor

WIDEST = 64
"""Streams held at the same time by a schedule, at most."""
WIDEST_ALONE = 8
"""The same where each stream of a call costs a call."""


@dataclass
class TalkerHarness:
    """One decoder, the scenarios it can run, and what a failing schedule is worth.

    Args:
        talker: the decoder under test, holding no stream.
        pool: scenarios for it.
        device: where it works.
        load: a second instance of the same backend, not warmed up.
        seed: of all schedules.
        effort: calls spent on shortening a failing schedule, at most.
    """

    talker: CheckedTalker
    pool: ScenarioPool
    device: torch.device
    load: Callable[[], CheckedTalker]
    seed: int
    effort: int

    @property
    def batch(self) -> bool:
        """Whether a wide call costs less than many narrow ones."""
        return self.talker.capabilities.batch

    @property
    def house(self) -> int:
        """Streams that schedules may hold."""
        return min(self.talker.max_streams or WIDEST, WIDEST)

    @property
    def crowd(self) -> int:
        """Streams that schedules of many wide calls may hold."""
        return self.house if self.batch else min(self.house, WIDEST_ALONE)

    def writer(self, title: str, width: int) -> ScheduleWriter:
        """Return the writer of a schedule; the same title gives the same random choices."""
        chance = random.Random(f"{self.seed} {title}")
        return ScheduleWriter(self.pool, width, chance, self.talker.capabilities.forced_codes)

    def executor(self, talker: CheckedTalker, comparison: Comparison | None = None) -> TalkerExecutor:
        return TalkerExecutor(
            talker, self.pool, self.device, OracleComparison(self.pool) if comparison is None else comparison
        )

    @contextmanager
    def another(self) -> Iterator[CheckedTalker]:
        """A second instance of the same backend, not warmed up."""
        talker = self.load()
        try:
            yield talker
        finally:
            talker.close()

    def hold_to(
        self,
        actions: Sequence[Action],
        promise: Promise,
        comparison: Comparison | None = None,
        talker: CheckedTalker | None = None,
        width: int | None = None,
    ) -> None:
        """Run a schedule; fail with the shortest one that breaks the promise.

        Args:
            actions: the schedule.
            promise: the promise that it tests.
            comparison: the expected frames; ``None``: those of the oracle.
            talker: the decoder that runs it; ``None``: the decoder under test.
            width: streams that it holds at the same time, at most; ``None``: as many as schedules may hold.
        """
        executor = self.executor(talker or self.talker, comparison)
        mismatch = executor.run(actions)
        if mismatch is None:
            return
        failing = list(actions[: mismatch.action + 1])
        if not self.effort:
            self._report(failing, mismatch, promise)
        if executor.run(failing) is None:
            self._report(failing, mismatch, promise, "run once more it went well: it takes what happened before")
        shorter = shortened(
            failing,
            lambda part: executor.run(self._tidied(part, width)) is not None,
            streams=streams,
            only=only,
            smaller=smaller,
            cost=len,
            effort=self.effort,
        )
        failing = self._tidied(shorter, width)
        self._report(failing, executor.run(failing) or mismatch, promise, self._second_opinion(failing, comparison))

    def hold_side_by_side(self, second: CheckedTalker, schedules: Sequence[Sequence[Action]], promise: Promise) -> None:
        """Run a schedule on each of the decoder under test and a second one, by turns."""
        executors = (self.executor(self.talker), self.executor(second))
        running = [executor.perform(schedule) for executor, schedule in zip(executors, schedules, strict=True)]
        for number, mismatches in enumerate(zip_longest(*running), 1):
            for name, mismatch in zip("12", mismatches, strict=True):
                if mismatch is not None:
                    shown = [described(schedule[:number], self.pool) for schedule in schedules]
                    lines = f"by turns, on instance 1\n{shown[0]}\nand on instance 2\n{shown[1]}"
                    broken(
                        promise, shown_by=lines, expected=f"instance {name}: {mismatch.expected}", found=mismatch.found
                    )

    def _tidied(self, actions: Sequence[Action], width: int | None) -> list[Action]:
        return tidied(actions, self.pool, width or self.house)

    def _second_opinion(self, failing: Sequence[Action], comparison: Comparison | None) -> str:
        try:
            with self.another() as talker:
                mismatch = self.executor(talker, comparison).run(failing)
        except MegatalkerError as error:
            return f"(a second instance could not be loaded: {error})"
        return "" if mismatch else "on a freshly loaded instance this goes well: it takes what happened before"

    def _report(self, failing: Sequence[Action], mismatch: Mismatch, promise: Promise, note: str = "") -> NoReturn:
        lines = [described(failing, self.pool), note, f"(--conformance-seed {self.seed})"]
        broken(promise, shown_by="\n".join(filter(None, lines)), expected=mismatch.expected, found=mismatch.found)
