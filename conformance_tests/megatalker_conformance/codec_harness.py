"""Holds a codec to schedules: runs them, and reports the shortest one that goes wrong."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codec_executor import CodecExecutor
from megatalker_conformance.codec_pool import CodePool
from megatalker_conformance.codec_schedule import Action, Draw, cost, only, smaller, split_calls, states
from megatalker_conformance.measure import Measure
from megatalker_conformance.promises import EXACTNESS, Mismatch, Promise, broken
from megatalker_conformance.shortening import shortened


@dataclass
class CodecHarness:
    """One codec, what it can be asked for, and what a failing schedule is worth.

    Args:
        codec: under test.
        pool: codes for it.
        load: a second instance of the same backend, not warmed up.
        measure: records the largest difference.
        seed: of all schedules.
        effort: calls spent on shortening a failing schedule, at most.
    """

    codec: CheckedCodec
    pool: CodePool
    load: Callable[[], CheckedCodec]
    measure: Measure
    seed: int
    effort: int

    def width(self, unlimited: int) -> int:
        """States that a call may have; where the codec sets no limit, this many."""
        return unlimited if self.codec.max_streams is None else self.codec.max_streams

    def draw(self, title: str, width: int) -> Draw:
        """Draws schedules of calls of at most ``width`` states; the same title draws the same."""
        return Draw(self.pool, width, f"{self.seed} {title}")

    def hold_to(
        self, *schedules: Sequence[Action], promise: Promise = EXACTNESS, codec: CheckedCodec | None = None
    ) -> None:
        """Run schedules; fail with the shortest part of the first one that breaks the promise.

        Args:
            schedules: one after another; calls wider than the codec takes are split.
            promise: the promise that they test.
            codec: the codec that runs them; ``None``: the codec under test.
        """
        executor = CodecExecutor(codec or self.codec, self.pool)
        for schedule in schedules:
            actions = split_calls(schedule, self.width(sys.maxsize))
            mismatch = executor.run(actions)
            if mismatch is not None:
                self._report(executor, list(actions[: mismatch.action + 1]), mismatch, promise)
        self.measure("largest difference", executor.largest, executor.limit)

    def _report(self, executor: CodecExecutor, failing: list[Action], mismatch: Mismatch, promise: Promise) -> NoReturn:
        lines = []
        if self.effort and executor.run(failing) is None:
            lines.append("(run once more it goes well: it takes what happened before)")
        elif self.effort:
            shorter = shortened(
                failing,
                lambda part: executor.run(part) is not None,
                streams=states,
                only=only,
                smaller=smaller,
                cost=cost,
                effort=self.effort,
            )
            again = executor.run(shorter)
            if again is not None:
                failing, mismatch = shorter, again
            if self._goes_well_elsewhere(failing):
                lines.append("(on a freshly loaded instance this goes well: it takes what happened before)")
        shown = "\n".join([*map(str, failing), *lines, f"(--conformance-seed {self.seed})"])
        broken(promise, shown_by=shown, expected=mismatch.expected, found=mismatch.found)

    def _goes_well_elsewhere(self, actions: Sequence[Action]) -> bool:
        fresh = self.load()
        try:
            return CodecExecutor(fresh, self.pool).run(actions) is None
        finally:
            fresh.close()
