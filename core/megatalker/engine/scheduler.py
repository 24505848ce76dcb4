"""The device's next launch: one policy, without a device, a queue or a clock of its own.

:func:`pick` reads a :class:`View` of all streams and returns the next launch. The first rule that applies decides:

1. *Prefill.* Waiting requests go together in one prefill batch, which includes their first frames and first audio.
   While streams are playing, it must end before the first of them needs the device (:func:`room`), and the budget must
   have time in it (:class:`megatalker.engine.costs.Budget`). No more begin than can be sustained
   (:meth:`megatalker.engine.costs.Costs.sustainable_streams`).
2. *First chunks.* A stream that was prefilled and has no audio yet comes before playing streams.
3. *Deadline.* Of a codec step and a decode step, the one whose stream runs out of audio first comes first.
4. *Idle.* Where there is nothing else to do, a batch need not wait for the budget.

Streams that lost their place in the backend, or come from another engine, are prefilled by deadline, too, whatever the
budget is.

All times are seconds of one monotonic clock. The rules' figures are in docs/scheduling.md.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from operator import attrgetter
from typing import Generic, TypeVar

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.costs import NEARLY_FULL, SUSTAINABLE, Budget, Costs

MARGIN_S = 0.035  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""A prefill batch ends this much before the first stream needs the device: it may take longer than predicted."""
FULL_MARGIN_S = 0.2  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The same on an engine that is nearly full: only if streams have this much in hand, there is time left for more."""
GROWTH = 0.5  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Share of the streams that can still be sustained that begin in one batch: first chunks cost more, and the next batch
knows what these did."""
LONG_PREFILL_S = 0.03  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The longest prefill batch while streams are playing: the longer it is, the worse it is predicted."""
FORCED_PREFILL_S = 0.02  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""The longest prefill batch for which streams wait though their playback runs dry."""
AUDIO_MARGIN_S = 0.05  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""A codec step ends this much before a stream needs its audio: a prefill batch may come before it."""
FRAMES_MARGIN_S = 0.01  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""A decode step ends this much before a stream needs its frame."""
SOON_S = 0.1  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Frames whose playback comes within this time are made audio before the next frames."""
MOST_CODEC_STREAMS = 64  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Streams of the largest codec step: larger ones save no time, and a request that arrives meanwhile waits."""
ENOUGH_S = 2.0  # measured: docs/notes/throughput.md#what-each-constant-is-worth
"""Audio in hand with which a stream can do without the device, or without its slot, for a while."""


# ---- what is known


class StreamStatus(Enum):
    """The next thing that a stream needs."""

    WAITING = "waiting"
    """A prefill: it has text to speak, and no decoder stream in the backend."""
    RUNNING = "running"
    """Its next frame, now or when playback has caught up."""
    STARVED = "starved"
    """Text from its caller."""
    FULL = "full"
    """Its consumer, which has to take some of the audio that is there."""
    ENDED = "ended"
    """Nothing, except that the frames it has become audio."""


@dataclass(slots=True, eq=False)
class Stream:
    """One stream as the policy sees it. The engine brings it up to date after each event, not before each launch."""

    status: StreamStatus = field(default=StreamStatus.STARVED, kw_only=True)
    owner: str = field(default="", kw_only=True)
    """Owners share the slots."""
    admitted: bool = field(default=False, kw_only=True)
    """It holds a slot of the backend, or is about to hold one again."""
    deadline: float = field(default=-math.inf, kw_only=True)
    """When its playback runs out of audio, audio under way included. Before its first chunk it has always run out."""
    ungiven: int = field(default=0, kw_only=True)
    """Frames that the codec can be given."""
    chunk_frames: int = field(default=1, kw_only=True)
    """Frames that make up its next chunk."""
    decode_at: float = field(default=math.inf, kw_only=True)
    """When it may be given a frame without getting too far ahead of playback; infinite unless it is running."""


StreamT = TypeVar("StreamT", bound=Stream)


@dataclass(frozen=True, slots=True)
class View(Generic[StreamT]):
    """All that :func:`pick` looks at."""

    streams: Sequence[StreamT]
    """Unfinished, oldest first."""
    costs: Costs
    budget: Budget
    waiting: int = 0
    """Requests that wait for a slot."""
    next_rows: int = 1
    """Rows of the prompt of the first of them."""
    next_s: float = math.inf
    """About how long the speech of the first of them lasts, in seconds; infinite while its text is not complete."""
    resuming: int = 0
    """Streams that hold a slot and need a prefill to go on."""
    held: int = 0
    """Streams that hold a slot."""
    running: int = 0
    """Streams that need a frame for each frame that is played."""
    owed: bool = False
    """The first request belongs to an owner with so few slots that it waits for no other owner's streams."""
    batched: bool = True
    """The talker takes many streams at about the cost of one."""
    codec_limit: float = math.inf
    """Streams of one codec step."""


# ---- what is next


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """Begin waiting requests, and continue streams that lost their place in the backend."""

    rows: float
    """At most this many rows of prompts, but one request at least."""
    streams: float
    """At most this many waiting requests."""
    forced: bool = False
    """Streams wait meanwhile though their playback runs dry."""
    owed: bool = False
    """Owners with few slots get some of those that other owners have many of."""


@dataclass(frozen=True, slots=True)
class CodecLaunch(Generic[StreamT]):
    """Make audio of the frames of these streams."""

    streams: Sequence[StreamT]
    wait: bool = False
    """Wait for the result: these are the last of the first chunks."""


@dataclass(frozen=True, slots=True)
class DecodeLaunch(Generic[StreamT]):
    """Make a frame for each of these streams."""

    streams: Sequence[StreamT]


@dataclass(frozen=True, slots=True)
class Rest:
    """Launch nothing before this moment, unless something arrives."""

    until: float


NextLaunch = PrefillLaunch | CodecLaunch[StreamT] | DecodeLaunch[StreamT] | Rest
_by_deadline = attrgetter("deadline")


def pick(view: View[StreamT], now: float) -> NextLaunch[StreamT]:
    """Return the next launch; the rules are in the module's docstring."""
    return _prefill(view, now) or _serve(view, now) or _prefill(view, now, idle=True) or _rest(view, now)


def fitting(sizes: Sequence[int], most: float) -> int:
    """Return how many of these, in their order, are together no more than ``most``."""
    return bisect_right(list(accumulate(sizes)), most)


# ---- prefill


@dataclass(frozen=True, slots=True)
class Room:
    """Limits of the next prefill batch, so that nobody's playback runs dry."""

    rows: float
    streams: float


def room(view: View[StreamT], now: float, lost_s: float = 0.0) -> Room:
    """Return what a prefill batch that begins now may hold. After it, what was decoded is made audio; then the others
    get a frame each, with the new streams, by deadline. While the new streams speak, each of the others loses
    ``lost_s`` of the audio that it has in hand.
    """
    streams, costs = view.streams, view.costs
    margin_s = lost_s + (FULL_MARGIN_S if costs.need(view.running) > NEARLY_FULL else MARGIN_S)
    soon = now + margin_s + SOON_S
    decoded = [one for one in streams if one.ungiven and (one.ungiven >= one.chunk_frames or one.deadline < soon)]
    others = [one for one in streams if not one.ungiven and one.decode_at <= soon]
    if not decoded and not others:
        return Room(math.inf, math.inf)
    decoded.sort(key=_by_deadline)
    deadlines = sorted([one.deadline for one in others])
    each_s, launch_s = costs.audio_each_s, costs.decode_s(len(decoded) + len(others))
    done_at, least_s = now, math.inf
    for one in decoded:
        done_at += one.ungiven * each_s
        least_s = min(least_s, one.deadline - done_at)
    first_s = FRAME_SECONDS - MARGIN_S - (done_at - now) - launch_s
    done_at += launch_s
    least_s = min([least_s] + [at - place * each_s - done_at for place, at in enumerate(deadlines, 1)])
    before = bisect_left(deadlines, now + FRAME_SECONDS)
    spare_s = least_s - margin_s
    rows = costs.prefill.size_within(min(spare_s, LONG_PREFILL_S))
    if costs.prefill.predict(view.next_rows) <= spare_s:  # then one request may take longer
        rows = max(rows, view.next_rows)
    return Room(rows, first_s / each_s - before if each_s else math.inf)


def _prefill(view: View[StreamT], now: float, *, idle: bool = False) -> PrefillLaunch | None:
    """Return a new prefill batch, if one may begin. A device that would be ``idle`` need not save its time."""
    costs, budget = view.costs, view.budget
    if not view.waiting:
        return _resume(view, idle=idle)
    sustainable = costs.sustainable_streams - view.running
    if view.owed or not view.batched:
        return PrefillLaunch(costs.most_rows, sustainable, owed=True)
    lost_s, part = 0.0, max(1.0, GROWTH * sustainable)
    if not view.held:
        return PrefillLaunch(costs.most_rows, part)
    if sustainable >= 1:
        sustainable = part
    else:  # short speech may use what others have in hand
        sustainable, lost_s = 1, (costs.need(view.running + 1) - SUSTAINABLE) * view.next_s
    spare, floor = idle or budget.spare_s > 0, idle or budget.floor_s > 0
    if lost_s < math.inf and (spare or floor):
        most = room(view, now, lost_s)
        if min(most.rows, most.streams) >= 1:
            if spare:  # else others leave time for it, but not now
                return PrefillLaunch(min(most.rows, costs.most_rows), min(most.streams, sustainable))
        elif floor and costs.need(view.running) <= NEARLY_FULL:
            return PrefillLaunch(max(1.0, costs.prefill.size_within(FORCED_PREFILL_S)), sustainable, forced=True)
    return _resume(view, idle=idle)


def _resume(view: View[StreamT], *, idle: bool) -> PrefillLaunch | None:
    """Return a prefill batch of streams that lost their place in the backend, if the first of them runs out of audio
    before the streams that have theirs.
    """
    if not view.resuming:
        return None
    if idle:
        return PrefillLaunch(view.costs.most_rows, 0)
    lost, playing = math.inf, math.inf
    for one in view.streams:
        if one.status is StreamStatus.WAITING:
            lost = min(lost, one.deadline) if one.admitted else lost
        elif one.ungiven or one.decode_at < math.inf:
            playing = min(playing, one.deadline)
    if lost > playing:
        return None
    return PrefillLaunch(max(1.0, view.costs.prefill.size_within(FORCED_PREFILL_S)), 0)


# ---- audio and frames


def _serve(view: View[StreamT], now: float) -> CodecLaunch[StreamT] | DecodeLaunch[StreamT] | None:
    """Return a codec step or a decode step: for first chunks, else by deadline. ``None``: no stream needs either."""
    decoded = [one for one in view.streams if one.ungiven]
    decoded.sort(key=_by_deadline)
    ready = [one for one in view.streams if one.decode_at <= now]
    if decoded and decoded[0].deadline == -math.inf:
        first = [one for one in decoded if one.deadline == -math.inf and one.ungiven >= one.chunk_frames]
        if first:
            return codec_launch(first, view, first=True)
    opening = [one for one in ready if one.deadline == -math.inf]
    if opening:
        return _decode(opening, view)
    overloaded = view.costs.need(view.running) > 1
    due = _due(decoded, ready, view, now, overloaded=overloaded)
    if due:
        return codec_launch(due, view)
    if not ready:
        return None
    in_need = [one for one in ready if one.deadline < now + ENOUGH_S] or ready
    return _decode(_fair(in_need, now) if overloaded else in_need, view)


def _due(
    decoded: Sequence[StreamT], ready: Sequence[StreamT], view: View[StreamT], now: float, *, overloaded: bool
) -> Sequence[StreamT]:
    """Return the streams whose frames should be made audio now; none where a decode step comes first."""
    urgent_until, costs = -math.inf, view.costs
    if not overloaded:  # small chunks, which cost more, would keep it slower than playback
        launch_s, each_s = costs.decode_s(view.running), costs.audio_each_s
        spare_s, done_at = math.inf, now + launch_s
        for one in decoded:
            done_at += one.ungiven * each_s
            left_s = one.deadline - done_at
            spare_s = min(spare_s, left_s)
            if left_s < AUDIO_MARGIN_S:
                urgent_until = one.deadline
        hungry_at = min([one.deadline for one in ready if not one.ungiven], default=math.inf)
        frame_s = launch_s + 2 * costs.most_frames * each_s + FRAMES_MARGIN_S  # with a codec step before and after it
        if ready and spare_s > FRAMES_MARGIN_S and hungry_at - now < frame_s:
            return ()
    return [one for one in decoded if one.ungiven >= one.chunk_frames or one.deadline <= urgent_until]


def codec_launch(streams: Sequence[StreamT], view: View[StreamT], *, first: bool = False) -> CodecLaunch[StreamT]:
    """Return a codec step of as many of these, in their order, as one takes; one at least."""
    some = streams[: int(min(view.codec_limit, MOST_CODEC_STREAMS))]
    count = max(1, fitting([one.ungiven for one in some], view.costs.most_frames))
    return CodecLaunch(some[:count], wait=first and count >= len(streams))


def _decode(streams: Sequence[StreamT], view: View[StreamT]) -> DecodeLaunch[StreamT]:
    most = view.costs.most_decoded
    if most < len(streams):
        streams = sorted(streams, key=_by_deadline)[: int(most)]
    return DecodeLaunch(streams)


def _fair(streams: Sequence[StreamT], now: float) -> Sequence[StreamT]:
    """Return as many streams of each owner, by deadline, as the owner with the fewest has that has little audio in
    hand: on a device that is too slow for all, one owner's many streams do not slow down another's few.
    """
    owners: defaultdict[str, list[StreamT]] = defaultdict(list)
    for one in sorted(streams, key=_by_deadline):
        owners[one.owner].append(one)
    in_need = (len(own) for own in owners.values() if own[0].deadline < now + ENOUGH_S)
    fewest = min(in_need, default=len(streams))
    return [one for own in owners.values() for one in own[:fewest]]


def _rest(view: View[StreamT], now: float) -> Rest:
    return Rest(min((one.decode_at for one in view.streams if one.decode_at > now), default=math.inf))
