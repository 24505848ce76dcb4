"""What the device does next: one policy, without a device, a queue or a clock of its own.

:func:`pick` reads a :class:`View` of all streams and returns the next launch. The first rule that applies decides:

1. *First chunks.* A stream that has been prefilled gets its first frame and its first audio before anything else.
2. *Prefill.* Waiting requests go together in one prefill batch. While other streams play, the batch must end before the
   first of them needs the device (:func:`slack_s`), and the budget must have time in it (:class:`Budget`).
3. *Sustainable streams.* No request begins beyond the number of streams whose frames the engine can make in time.
4. *Deadline.* Of a codec step and a decode step, the one whose stream runs out of audio first comes first.
5. *Nobody waits for ever.* A request begins where the device would be idle, or after :data:`PATIENCE_S`, whatever
   rule 2 says.

All times are seconds of one monotonic clock. The rules' figures are in docs/scheduling.md.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from megatalker.engine.costs import SUSTAINABLE, Budget, Costs

MARGIN_S = 0.035
"""A prefill batch ends this much before the first stream needs the device: it may take longer than predicted."""
LONG_PREFILL_S = 0.03
"""The longest prefill batch while streams are playing: the longer it is, the worse it is predicted."""
MOST_BATCH_S = 0.15
"""After this long a batch takes no further prompts: until a device is known it may be slow."""
PREFILL_LAUNCHES = 3
"""Launches of one prefill batch that requests can join which arrive during the first."""
PATIENCE_S = 0.6
"""A request that has waited this long, with no prefill batch meanwhile, begins whatever others need."""
AUDIO_MARGIN_S = 0.05
"""A codec step ends this much before a stream needs its audio: a prefill batch may come before it."""
FRAMES_MARGIN_S = 0.01
"""A decode step ends this much before a stream needs its frame."""
MOST_CODEC_STREAMS = 64
"""Streams of the largest codec step: larger ones save no time, and a request that arrives meanwhile waits."""
UNBATCHED_STREAMS = 2
"""Streams of a decode step of a backend that takes them one after another."""
ENOUGH_S = 2.0
"""Audio in hand with which a stream can do without the device, or without its row, for a while."""


# ---- what is known


class Stream(NamedTuple):
    """A stream that needs the device now or soon."""

    place: int
    """Position in the engine's list."""
    deadline: float
    """When its playback runs out of audio, audio under way included; infinite before its first chunk."""
    requested_at: float
    opening: bool
    """It has been prefilled, and its first chunk is not under way."""
    frames: int
    """Decoded, and not given to the codec."""
    chunk_ready: bool
    """These frames fill a chunk."""
    decodable: bool
    """It can be given a frame now."""
    owner: str = ""


@dataclass(slots=True)
class Batch:
    """A prefill batch whose streams have not had their first chunk."""

    began_at: float
    beside: bool
    """Other streams were playing when it began."""
    rows: int = 0
    launches: int = 0
    closed: bool = False
    """Nothing is added to it."""
    left_over: bool = False
    """More requests were chosen for it than fitted into its last launch."""


@dataclass(frozen=True, slots=True)
class View:
    """All that :func:`pick` looks at."""

    streams: Sequence[Stream]
    costs: Costs
    budget: Budget
    running: int = 0
    """Streams that hold a row and have work."""
    waiting: int = 0
    """Requests that wait for a row."""
    waiting_since: float = math.inf
    """When the first of them was made."""
    resuming: int = 0
    """Streams that hold a row and need a prefill to go on."""
    owed: bool = False
    """The first of those that wait belongs to an owner that has so few rows that it waits for nobody."""
    batch: Batch | None = None
    """The prefill batch that is under way."""
    last_batch_at: float = -math.inf
    batched: bool = True
    """The talker decodes many streams at about the cost of one."""
    decode_limit: float = math.inf
    """Streams of one decode step."""
    codec_limit: float = math.inf
    """Streams of one codec step."""
    next_at: float = math.inf
    """When the first stream that rests may go on."""


# ---- what is next


class Prefill(NamedTuple):
    """Begin waiting requests."""

    rows: float
    """At most this many rows of prompts."""
    streams: float = math.inf
    """At most this many of them."""


class CodecStep(NamedTuple):
    """Make audio of the frames of these streams."""

    places: Sequence[int]
    wait: bool = False
    """Wait for the result: these are the last of the first chunks."""


class DecodeStep(NamedTuple):
    """Make a frame for each of these streams."""

    places: Sequence[int]


class Wait(NamedTuple):
    """Launch nothing before this moment, unless something arrives."""

    until: float


Launch = Prefill | CodecStep | DecodeStep | Wait
_by_deadline = attrgetter("deadline")
_by_request = attrgetter("requested_at")


def pick(view: View, now: float) -> Launch:
    """Return the next launch; the rules are in the module's docstring."""
    opening = sorted((one for one in view.streams if one.opening), key=_by_request)
    ready = [one for one in opening if one.chunk_ready]
    if ready:
        return _codec_step(ready, view, first=True)
    prefill = None
    if view.batch is not None:
        prefill = _more_prefill(view, now, view.batch)
    elif not opening:
        prefill = _prefill(view, now)
    if prefill is not None:
        return prefill
    if opening:
        return _decode_step([one for one in opening if one.decodable], view)
    return _codec_or_decode(view, now) or _prefill(view, now, idle=True) or Wait(view.next_at)


def slack_s(view: View, now: float) -> float:
    """Return how much later than ``now`` the device may begin to serve the streams that play: with a frame for all and
    then their audio, by deadline, each has its audio just in time. Infinite where none plays.
    """
    playing = sorted((one.deadline, max(1, one.frames)) for one in view.streams if one.deadline < math.inf)
    costs, slowdown, least_s = view.costs, view.costs.slowdown, math.inf
    done_at, each_s = now + slowdown * costs.frames.predict(len(playing)), slowdown * costs.audio_each_s
    for deadline, frames in playing:
        done_at += frames * each_s
        least_s = min(least_s, deadline - done_at)
    return least_s


def fitting(sizes: Sequence[int], most: float) -> int:
    """Return how many of these, in their order, are together no more than ``most``."""
    return bisect_right(list(accumulate(sizes)), most)


def _prefill(view: View, now: float, *, idle: bool = False) -> Prefill | None:
    """Return a new prefill batch, if one may begin. A device that would be ``idle`` need not save its time."""
    costs, rows = view.costs, 0.0
    room = costs.sustainable_streams - view.running if view.running else math.inf
    overdue = now > max(view.last_batch_at, view.waiting_since) + PATIENCE_S
    if view.owed or (view.waiting and not view.batched):
        return Prefill(costs.most_rows)
    if view.waiting and room >= 1:
        if not any(one.deadline < math.inf for one in view.streams):
            rows = costs.most_rows
        elif idle or overdue or view.budget.balance_s > 0:
            rows = _rows(view, now)
            if idle or overdue:
                rows = max(1.0, rows)
    return Prefill(rows, room) if rows >= 1 or view.resuming else None


def _more_prefill(view: View, now: float, batch: Batch) -> Prefill | None:
    """Return the next launch of the batch that is under way, also for requests that arrived since it began."""
    if not view.batched or batch.closed or now > batch.began_at + MOST_BATCH_S:
        return None
    if batch.left_over:
        return Prefill(math.inf)
    if batch.launches >= PREFILL_LAUNCHES or not (view.waiting or view.resuming):
        return None
    room = view.costs.sustainable_streams - view.running
    rows = _rows(view, batch.began_at) - batch.rows if room >= 1 else 0.0
    return Prefill(rows, room) if rows >= 1 or view.resuming else None


def _rows(view: View, began_at: float) -> float:
    """Return how many rows a batch that begins then may have, so that nobody's playback runs dry."""
    spare_s, costs = slack_s(view, began_at), view.costs
    if spare_s == math.inf:
        return costs.most_rows
    return min(costs.most_rows, costs.prefill.size_within(min(spare_s - MARGIN_S, LONG_PREFILL_S)))


def _codec_or_decode(view: View, now: float) -> CodecStep | DecodeStep | None:
    """Return a codec step or a decode step, by deadline; ``None``: no stream needs either."""
    costs = view.costs
    launch_s, each_s = costs.frames.predict(view.running), costs.audio_each_s
    overloaded = costs.need(view.running) > SUSTAINABLE
    decoded = sorted((one for one in view.streams if one.frames), key=_by_deadline)
    urgent_until, spare_s, done_at = -math.inf, math.inf, now
    for one in decoded:
        done_at += one.frames * each_s
        left_s = one.deadline - done_at - launch_s
        spare_s = min(spare_s, left_s)
        if left_s < AUDIO_MARGIN_S and not overloaded:  # else larger chunks cost less
            urgent_until = one.deadline
    due = [one for one in decoded if one.chunk_ready or one.deadline <= urgent_until]
    ready = [one for one in view.streams if one.decodable]
    hungry_at = min((one.deadline for one in ready if not one.frames), default=math.inf)
    frame_s = launch_s + 2 * costs.most_frames * each_s + FRAMES_MARGIN_S  # with a codec step before and after it
    frame_first = not overloaded and spare_s > FRAMES_MARGIN_S and hungry_at - now < frame_s
    if due and not (frame_first and ready):
        return _codec_step(due, view)
    return _decode_step(_fair(ready, now) if overloaded else ready, view) if ready else None


def _codec_step(streams: Sequence[Stream], view: View, *, first: bool = False) -> CodecStep:
    """Return a codec step of as many of these, in their order, as one takes; one at least."""
    some = streams[: int(min(view.codec_limit, MOST_CODEC_STREAMS))]
    count = max(1, fitting([one.frames for one in some], view.costs.most_frames))
    return CodecStep([one.place for one in some[:count]], wait=first and count >= len(streams))


def _decode_step(streams: Sequence[Stream], view: View) -> DecodeStep:
    most = view.decode_limit if view.batched else min(view.decode_limit, UNBATCHED_STREAMS)
    if most < len(streams):
        streams = sorted(streams, key=_by_deadline)[: int(most)]
    return DecodeStep([one.place for one in streams])


def _fair(streams: Sequence[Stream], now: float) -> Sequence[Stream]:
    """Return as many streams of each owner, by deadline, as the owner with the fewest has that has little audio in
    hand: on a device that is too slow for all, one owner's many streams do not slow down another's few.
    """
    owners: defaultdict[str, list[Stream]] = defaultdict(list)
    for one in sorted(streams, key=_by_deadline):
        owners[one.owner].append(one)
    in_need = (len(own) for own in owners.values() if own[0].deadline < now + ENOUGH_S)
    fewest = min(in_need, default=len(streams))
    return [one for own in owners.values() for one in own[:fewest]]
