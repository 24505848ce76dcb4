"""Who is let in, and who gets the next free row.

An utterance *has work* while there is text for it to speak and its consumer takes the audio. One without work counts
neither as running nor as waiting, and its row is lent to others who wait for one: it goes on later from the frames it
has. What is limited: those with work (``max_streams`` that run, ``max_waiting`` that wait), how long one may wait for
its first row (``max_wait_s``), all that are open (``max_open``), and those of one owner (``max_streams_per_owner``).

Rows go to owners by turns, so that nobody waits for all that another owner has asked for.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.scheduling import Throughput
from megatalker.engine.utterance import Utterance
from megatalker.errors import CapacityError
from megatalker.settings import Settings


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The settings of the same names; ``rows`` is how many streams can run at a time."""

    rows: int
    max_waiting: int
    max_open: int
    max_streams_per_owner: int | None
    max_wait_s: float | None

    @classmethod
    def of(cls, settings: Settings, *rows: int | None) -> "AdmissionLimits":
        """What the settings allow, with at most so many ``rows``."""
        return cls(
            min(limit for limit in (settings.max_streams, *rows) if limit is not None),
            settings.max_waiting,
            settings.max_open,
            settings.max_streams_per_owner,
            settings.max_wait_s,
        )


def refusal(
    opened: Collection[Utterance], newcomer: Utterance, limits: AdmissionLimits, throughput: Throughput
) -> CapacityError | None:
    """Why ``newcomer`` is not let in beside those that are open, or ``None``."""
    own = sum(other.owner == newcomer.owner for other in opened)
    if limits.max_streams_per_owner is not None and own >= limits.max_streams_per_owner:
        return CapacityError(
            f"{own} streams of this owner are open already; end one, or raise the setting max_streams_per_owner"
        )
    if len(opened) >= limits.max_open:
        return CapacityError(f"{len(opened)} streams are open already; end one, or raise the setting max_open")
    return None if newcomer.idle_since is not None else queue_refusal(having_work(opened), limits, throughput)


def having_work(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Those that hold a row for it or wait for one."""
    return [one for one in utterances if one.idle_since is None]


def queue_refusal(busy: Sequence[Utterance], limits: AdmissionLimits, throughput: Throughput) -> CapacityError | None:
    """Why one more may not have work beside those that have, or ``None``."""
    if len(busy) < limits.rows:
        return None
    wait_s = expected_wait_s(busy, limits.rows, throughput)
    if len(busy) >= limits.rows + limits.max_waiting:
        return CapacityError(
            f"{limits.rows} streams run and {len(busy) - limits.rows} wait already; try again {_when(wait_s)}, "
            "or raise the settings max_streams or max_waiting",
            retry_after_s=wait_s,
        )
    if limits.max_wait_s is not None and wait_s is not None and wait_s > limits.max_wait_s:
        later_s = wait_s - limits.max_wait_s
        return CapacityError(
            f"a stream would have to wait {wait_s:.0f} s for its turn, longer than {limits.max_wait_s:g} s; try again "
            f"{_when(later_s)}, or raise the settings max_streams or max_wait_s",
            retry_after_s=later_s,
        )
    return None


def waited_too_long(busy: Sequence[Utterance], limits: AdmissionLimits, throughput: Throughput) -> CapacityError:
    """The end of one that waited longer for its first row than ``max_wait_s``."""
    wait_s = expected_wait_s(busy, limits.rows, throughput)
    return CapacityError(
        f"no stream was free for {limits.max_wait_s:g} s; try again {_when(wait_s)}, "
        "or raise the settings max_streams or max_wait_s",
        retry_after_s=wait_s,
    )


def expected_wait_s(busy: Iterable[Utterance], rows: int, throughput: Throughput) -> float | None:
    """When one that came now would get a row, where all that are ``busy`` come first: the streams that run share the
    frames that the engine was seen to make a second. ``None`` while nothing was seen.
    """
    if not throughput.frames_a_second:
        return None
    everybody = sorted(busy, key=lambda one: not one.admitted)
    if len(everybody) < rows:
        return 0.0
    durations = [_seconds_left(one, throughput.frames_a_second / rows, throughput) for one in everybody]
    free_at = durations[:rows]
    heapq.heapify(free_at)
    for seconds in durations[rows:]:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return free_at[0]


def _seconds_left(one: Utterance, frames_a_second: float, throughput: Throughput) -> float:
    paced = one.request.max_ahead_s is not None  # it is not made faster than it is played
    pace = min(frames_a_second, 1 / FRAME_SECONDS) if paced else frames_a_second
    return max(1.0, one.text.characters * throughput.frames_a_character - len(one.frames)) / pace


def _when(seconds: float | None) -> str:
    return "when one has ended" if seconds is None else f"in about {max(1.0, seconds):.0f} s"


@dataclass(slots=True)
class Turns:
    """Start-time fair queueing: each wish for a row gets a number, and the lowest goes first. The numbers of one owner
    follow each other, those of another begin at the one being served; among equal numbers the earlier wish goes first.
    """

    _served: int = 0
    """The highest number that got its row."""
    _next: dict[str, int] = field(default_factory=dict)
    """The next number of each owner."""
    _wishes: int = 0

    def order(self, wishing: Sequence[Utterance]) -> list[Utterance]:
        """In the order of their turns."""
        return sorted(wishing, key=self._turn)

    def serve(self, utterance: Utterance) -> None:
        """It got its row."""
        if utterance.turn is not None:
            self._served = max(self._served, utterance.turn[0])
            utterance.turn = None
        if len(self._next) > 1024:  # who has nothing waiting begins anew
            self._next = {owner: number for owner, number in self._next.items() if number > self._served}

    def _turn(self, utterance: Utterance) -> tuple[int, int]:
        if utterance.turn is None:
            self._wishes += 1
            number = max(self._served, self._next.get(utterance.owner, 0))
            self._next[utterance.owner] = number + 1
            # one that has begun goes before what its owner has not begun
            utterance.turn = (self._served if utterance.progress.segments else number), self._wishes
        return utterance.turn
