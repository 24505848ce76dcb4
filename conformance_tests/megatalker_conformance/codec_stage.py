"""Holds a codec to schedules: plays them, and reports the shortest one that goes wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codec_player import Failure, Player
from megatalker_conformance.codec_pool import CodePool
from megatalker_conformance.codec_schedule import Action, Draw, cost, only, smaller, states
from megatalker_conformance.codes import EXACT
from megatalker_conformance.measure import Measure
from megatalker_conformance.promises import EXACTNESS, Promise, broken
from megatalker_conformance.shortening import shortened


@dataclass
class CodecStage:
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

    def draw(self, title: str, width: int, calls: int) -> list[Action]:
        """A schedule; the same title gives the same one."""
        return Draw(self.pool, width, f"{self.seed} {title}").schedule(calls)

    def hold_to(
        self, *schedules: Sequence[Action], promise: Promise = EXACTNESS, codec: CheckedCodec | None = None
    ) -> None:
        """Play schedules; fail with the shortest part of the first one that breaks the promise.

        Args:
            schedules: one after another.
            promise: what they show.
            codec: who plays; ``None``: the codec under test.
        """
        player = Player(codec or self.codec, self.pool)
        for actions in schedules:
            failure = player.play(actions)
            if failure is not None:
                self._report(player, list(actions[: failure.action + 1]), failure, promise)
        self.measure("largest difference", player.largest, EXACT)

    def _report(self, player: Player, failing: list[Action], failure: Failure, promise: Promise) -> NoReturn:
        lines = []
        if self.effort and player.play(failing) is None:
            lines.append("(played once more it goes well: it takes what happened before)")
        elif self.effort:
            shorter = shortened(
                failing,
                lambda part: player.play(part) is not None,
                streams=states,
                only=only,
                smaller=smaller,
                cost=cost,
                effort=self.effort,
            )
            again = player.play(shorter)
            if again is not None:
                failing, failure = shorter, again
            if self._goes_well_elsewhere(failing):
                lines.append("(on a freshly loaded instance this goes well: it takes what happened before)")
        shown = "\n".join([*map(str, failing), *lines, f"(--conformance-seed {self.seed})"])
        broken(promise, shown_by=shown, expected=failure.expected, found=failure.found)

    def _goes_well_elsewhere(self, actions: Sequence[Action]) -> bool:
        fresh = self.load()
        try:
            return Player(fresh, self.pool).play(actions) is None
        finally:
            fresh.close()
