"""Admission: which requests are let in, and which gets the next free slot.

An utterance *has work* while there is text for it to speak and its consumer takes the audio. One without work counts
neither as running nor as waiting, and its row is lent to others who wait for one: it goes on later from the frames it
has. What is limited: those with work (``max_streams`` that run, ``max_waiting`` that wait), how long one may wait for
its first row (``max_wait_s``), all that are open (``max_open``), and those of one owner (``max_streams_per_owner``).

The next row goes to the owner with the fewest, so that nobody waits for all that another owner has asked for. Where
none is free, an owner that has at least two rows fewer than another gets one of that owner's, though the stream in it
has work. So the expected wait and the place in the queue are one owner's: of what others have asked for, only that
counts which is served before. Open streams are shared by the same rule: where ``max_open`` is reached, an owner that
has at least two more than another one gives one up to it.
"""

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.costs import Costs, Throughput
from megatalker.engine.scheduler import ENOUGH_S
from megatalker.engine.utterance import Utterance
from megatalker.errors import CapacityError
from megatalker.settings import Settings

AN_EXCHANGE = 2  # not tuned: the least difference that makes neither owner poorer than the other
"""Rows that an owner has fewer than another one where it gets one of that one's: less would turn the two round."""
LEAST_WAIT_S = 1.0  # not tuned: the unit of `Retry-After`
"""Nobody is told to come again sooner: ``Retry-After`` has whole seconds."""
LONG_S = 0.5  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""A request that has waited this long waits for a stream to end, not for the prefill batch before its own."""
MOST_OWNERS = 1024  # not tuned: a bound of memory
"""Owners that are remembered."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The settings of the same names; ``rows`` is how many streams can run at a time without gaps."""

    rows: int
    slots: int
    """How many can, by what fewer of them cost: nobody is refused for that, but told how long it may wait."""
    max_waiting: int
    max_open: int
    max_streams_per_owner: int | None
    max_wait_s: float | None
    remedy: str = "raise the setting max_streams"
    """Advice for a caller who wants a slot sooner."""

    @classmethod
    def of(cls, settings: Settings, rows: int | None, costs: Costs) -> "AdmissionLimits":
        """Return what the settings, the ``rows`` of the backend, and the costs of launches allow."""
        most = settings.max_streams if rows is None else min(settings.max_streams, rows)
        limits = settings.max_waiting, settings.max_open, settings.max_streams_per_owner, settings.max_wait_s
        slots = int(min(most, costs.sustainable_streams))
        if costs.proven_streams < most:
            return cls(slots, slots, *limits, "use a faster machine, or more of them")
        return cls(most, slots, *limits)


def refusal(
    opened: Collection[Utterance], new: Utterance, limits: AdmissionLimits, throughput: Throughput, now: float
) -> CapacityError | None:
    """Return why ``new`` is not let in while those are open; ``None``: it is."""
    if limits.max_streams_per_owner is not None:
        own = sum(other.owner == new.owner for other in opened)
        if own >= limits.max_streams_per_owner:
            return CapacityError(
                f"{own} streams of this owner are open already; end one, or raise the setting max_streams_per_owner"
            )
    if len(opened) >= limits.max_open:
        return CapacityError(f"{len(opened)} streams are open already; end one, or raise the setting max_open")
    return None if new.idle_since is not None else queue_refusal(opened, new, limits, throughput, now)


def gives_place(opened: Collection[Utterance], new: Utterance, limits: AdmissionLimits) -> Utterance | None:
    """Return the utterance that ends so that ``new`` can be opened, where ``max_open`` is reached.

    It belongs to the owner that has most, if that is :data:`AN_EXCHANGE` more than the new one's: the one without work
    for longest, else the last that has not begun. ``None``: there is a place, or nobody has to give one up.
    """
    if len(opened) < limits.max_open:
        return None
    held = Counter(one.owner for one in opened)

    def ease(one: Utterance) -> tuple[int, bool, float]:
        rests_since = one.idle_since  # looked at once: the worker may change it meanwhile
        return held[one.owner], rests_since is not None, -(rests_since or -one.progress.requested_at)

    able = [
        one
        for one in opened
        if held[one.owner] >= held[new.owner] + AN_EXCHANGE
        and one.ending is None
        and (one.idle_since is not None or not (one.admitted or one.begun))
    ]
    return max(able, key=ease, default=None)


def gave_place(limits: AdmissionLimits) -> CapacityError:
    """The end of an utterance that :func:`gives_place` chose."""
    return CapacityError(
        f"{limits.max_open} streams are open, and this owner has more of them than others; this one has ended so that "
        "another owner gets one; end streams that have nothing to say, or raise the setting max_open"
    )


def queue_refusal(
    opened: Collection[Utterance], new: Utterance, limits: AdmissionLimits, throughput: Throughput, now: float
) -> CapacityError | None:
    """Return why ``new`` may not have work while those are open; ``None``: it may."""
    if len(opened) < limits.rows:  # it gets a slot at once
        return None
    wait = expected_wait(opened, new, limits, throughput, now)
    if wait.before >= limits.rows and wait.queued >= limits.max_waiting:
        run = wait.before - wait.queued
        return wait.refusal(f"{run} streams run and {wait.queued} wait already", "max_waiting", limits)
    wait_s = wait.seconds if limits.slots == limits.rows else None
    if limits.max_wait_s is not None and wait_s is not None and wait_s > limits.max_wait_s:
        reason = f"a stream would have to wait {wait_s:.0f} s for its turn, longer than {limits.max_wait_s:g} s"
        return wait.refusal(reason, "max_wait_s", limits)
    return None


def waited_too_long(
    opened: Iterable[Utterance], new: Utterance, limits: AdmissionLimits, throughput: Throughput, now: float
) -> CapacityError:
    """Return the end of ``new``, which waited longer for its first slot than ``max_wait_s``."""
    wait = expected_wait(opened, new, limits, throughput, now)
    return wait.refusal(f"no stream was free for {limits.max_wait_s:g} s", "max_wait_s", limits)


class ExpectedWait(NamedTuple):
    """The wait of a request that comes now for its slot: the one estimate that callers, servers and routes are told."""

    seconds: float | None
    """``None`` while launches have no known cost."""
    before: int
    """Streams that run, and requests that are served before it."""
    queued: int
    """Those of them that wait, and find no free slot."""
    at_least: bool
    """Text may still come for one of them: then it takes longer."""

    def refusal(self, reason: str, setting: str, limits: AdmissionLimits) -> CapacityError:
        """Return the error that says when to come again: once all who come before have had their slots."""
        if self.seconds is None:
            return CapacityError(
                f"{reason}; try again when one has ended, raise the setting {setting}, or {limits.remedy}"
            )
        after_s = max(LEAST_WAIT_S, self.seconds)
        when = (
            f"in {after_s:.0f} s or later, as text may still come for others"
            if self.at_least
            else f"in about {after_s:.0f} s"
        )
        return CapacityError(
            f"{reason}; try again {when}, raise the setting {setting}, or {limits.remedy}", retry_after_s=after_s
        )


def expected_wait(
    opened: Iterable[Utterance], new: Utterance | None, limits: AdmissionLimits, throughput: Throughput, now: float
) -> ExpectedWait:
    """Return how long ``new``, or any request, waits where those are open and nobody else comes.

    Slots become free as the streams in them end. Each makes frames at the pace that the costs of launches allow, and no
    faster than it is played, where it may not get far ahead. All that run have slots, be they more than can be
    sustained. Where requests wait although slots are free, as the streams that run have too little audio in hand for
    another one, no more slots are counted than are in use.
    """
    running, waiting = _before(opened, new)
    before = running + waiting
    queued = min(len(waiting), max(0, len(before) - limits.rows))
    tells = ExpectedWait(0.0, len(before), queued, at_least=False)
    waited_long = any(now - one.progress.requested_at > LONG_S for one in waiting)
    slots = max(math.ceil(limits.slots / 2) if waited_long else limits.slots, len(running))
    if len(before) < slots:
        return tells
    asked = Counter([one.owner for one in before])
    own = 0 if new is None else asked.pop(new.owner, 0)
    share = 0 if new is None else _share(asked.values(), slots)
    if share > own:  # it gets the slot of another owner at once
        return ExpectedWait(0.0, 0, 0, at_least=False)
    round_s = throughput.round_s(slots)
    if not round_s:
        return tells._replace(seconds=None)
    seconds = _seconds_left(before, round_s, throughput, now)
    wait_s = _first_free(seconds, slots)
    if new is not None and share:
        own_s = [left_s for left_s, one in zip(seconds, before, strict=True) if one.owner == new.owner]
        wait_s = min(wait_s, _first_free(own_s, share))
    return tells._replace(seconds=wait_s, at_least=not all(one.text.finished for one in before))


def _before(opened: Iterable[Utterance], new: Utterance | None) -> tuple[list[Utterance], list[Utterance]]:
    """Return those with work that come before ``new``: all that run; and of those that wait all of its own owner's, and
    as many of each other owner's as are served before it.
    """
    running, waiting = list[Utterance](), list[Utterance]()
    for one in opened:
        if one is not new and one.idle_since is None:
            (running if one.admitted else waiting).append(one)  # looked at once: the worker may admit it meanwhile
    if new is None:
        return running, waiting
    held, first = Counter(one.owner for one in running), list[Utterance]()
    own = held[new.owner] + sum(one.owner == new.owner for one in waiting)
    for one in waiting:
        held[one.owner] += 1
        if held[one.owner] <= own + 1:
            first.append(one)
    return running, first


def _share(others: Iterable[int], slots: int) -> int:
    """Return how many slots an owner is sure of, whatever other owners have asked for: shares are max-min fair."""
    owners = sorted(others)
    for place, asked in enumerate(owners):
        share = slots // (len(owners) - place + 1)
        if asked >= share:
            return share
        slots -= asked
    return slots


def _first_free(seconds: list[float], slots: int) -> float:
    """Return when one of the slots is free after streams that take this long each, at least ``slots`` of them."""
    free_at = seconds[:slots]
    heapq.heapify(free_at)
    for taken_s in seconds[slots:]:
        heapq.heapreplace(free_at, free_at[0] + taken_s)
    return free_at[0]


def _seconds_left(streams: Sequence[Utterance], round_s: float, throughput: Throughput, now: float) -> list[float]:
    """Return how long each still takes: hundreds are looked at for each request that finds no slot free."""
    frames = [one.frames_left(throughput.frames_a_character) for one in streams]
    if round_s >= FRAME_SECONDS:  # none gets ahead of playback
        return [left * round_s for left in frames]
    return [max(left * round_s, _played_s(one, left, now)) for left, one in zip(frames, streams, strict=True)]


def _played_s(one: Utterance, frames: float, now: float) -> float:
    """Return how long the stream is at these frames where it must not get further ahead of playback."""
    ahead_s = one.request.max_ahead_s
    if ahead_s is None:
        return 0.0
    in_hand_s = max(0.0, one.deadline - now)
    return frames * FRAME_SECONDS - max(0.0, ahead_s - in_hand_s)


def serve(served: dict[str, int], owner: str) -> None:
    """Remember that a row went to this owner now."""
    if len(served) > MOST_OWNERS:
        served.clear()
    served[owner] = 1 + max(served.values(), default=0)


def first_of(wishing: Collection[Utterance], holding: Iterable[Utterance], served: Mapping[str, int]) -> Utterance:
    """Return the request that gets the next slot; see :func:`grants`."""
    held = Counter(one.owner for one in holding)
    return min(wishing, key=lambda one: (held[one.owner], served.get(one.owner, 0), not one.begun))


class Grant(NamedTuple):
    """A row for one that waits."""

    taker: Utterance
    lender: Utterance | None = None
    """The stream that gives its slot up; ``None``: the slot is free, or the taker's own."""
    due: bool = False
    """Its owner has at least :data:`AN_EXCHANGE` rows fewer than another one, whose streams it need not wait for."""


def is_owed(wishing: Iterable[Utterance], holding: Iterable[Utterance]) -> bool:
    """Whether the first of their :func:`grants` would be due, were there a row for it."""
    held = Counter(one.owner for one in holding)
    few = max(held.values(), default=0) - AN_EXCHANGE
    return few >= 0 and any(held[owner] <= few for owner in {one.owner for one in wishing})


def grants(
    wishing: Iterable[Utterance],
    holding: Iterable[Utterance],
    rows: float,
    now: float,
    *,
    served: Mapping[str, int] = MappingProxyType({}),
    prompt_rows: float = math.inf,
) -> list[Grant]:
    """Rows for requests that wait, in the order in which they get them.

    The owner with the fewest rows comes first; of several the one that was served longest ago, then the earliest
    request. Within an owner, streams that have begun come first. Free rows are given first, then those of streams
    without work, of which the ones with the most audio in hand lend first; then those of owners that have many.

    Args:
        wishing: oldest first.
        holding: those that hold a row.
        rows: how many there are.
        now: seconds of the engine's clock.
        served: when each owner got a row last.
        prompt_rows: enough are found where their prompts have this many rows.
    """
    queues: defaultdict[str, deque[tuple[int, Utterance]]] = defaultdict(deque)
    for place, one in sorted(enumerate(wishing), key=lambda wish: not wish[1].begun):
        queues[one.owner].append((place, one))
    left = {id(one): one for one in holding}
    free, held, found = rows - len(left), Counter(one.owner for one in left.values()), list[Grant]()
    last, lenders = dict(served), list[Utterance]()
    if free < sum(map(len, queues.values())):
        lenders = [one for one in left.values() if one.lends_at <= now]
    resting = deque(sorted(lenders, key=lambda one: -one.in_hand_s(now)))
    alone = len(queues.keys() | held.keys()) == 1
    while queues and prompt_rows > 0:
        owner = min(queues, key=lambda name: (held[name], last.get(name, 0), queues[name][0][0]))
        due = not alone and held[owner] <= max(held.values(), default=0) - AN_EXCHANGE
        taker, lender = queues[owner][0][1], None
        if free > 0:
            free -= 1
        else:
            lender = resting.popleft() if resting else _rich(left.values(), held, taker, now) if due else None
            if lender is None:
                break
            del left[id(lender)]
            held[lender.owner] -= 1
        queues[owner].popleft()
        if not queues[owner]:
            del queues[owner]
        held[owner] += 1
        serve(last, owner)
        prompt_rows -= taker.prompt_rows
        found.append(Grant(taker, lender, due))
    return found


def _rich(holding: Iterable[Utterance], held: Mapping[str, int], taker: Utterance, now: float) -> Utterance | None:
    """Return the stream that gives its slot to ``taker``, though it may have work.

    It belongs to the owner with the most slots: one that has no work just now, or :data:`ENOUGH_S` of audio in hand; of
    several the one that costs least when it goes on. ``None`` if all of them are about to begin.
    """

    def ease(one: Utterance) -> tuple[int, bool, bool, int]:
        return held[one.owner], one.idle_since is not None, one.in_hand_s(now) >= ENOUGH_S, -one.prompt_rows

    able = [one for one in holding if one.decoding and held[one.owner] >= held[taker.owner] + AN_EXCHANGE]
    return max(able, key=ease, default=None)
