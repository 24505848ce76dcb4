"""The device's next launch: one policy, without a device, a queue or a clock of its own.

:func:`pick` reads a :class:`View` of all streams and returns the next launch. The first rule that applies decides:

1. *Prefill.* Waiting requests go together in one prefill batch, which includes their first frames and first audio.
   While others play, it must end before the first of them needs the device (:func:`room`), and the budget must have
   time in it (:class:`megatalker.engine.costs.Budget`).
2. *First chunks.* A stream that was prefilled and has no audio yet comes before playing streams.
3. *Deadline.* Of a codec step and a decode step, the one whose stream runs out of audio first comes first.
4. *Sustainable streams.* No request begins beyond the number of streams whose frames the engine can make in time.
5. *Idle.* Where there is nothing else to do, a batch need not wait for the budget.

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

from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.costs import SUSTAINABLE, Budget, Costs

MARGIN_S = 0.035
"""A prefill batch ends this much before the first stream needs the device: it may take longer than predicted."""
LONG_PREFILL_S = 0.03
"""The longest prefill batch while streams are playing: the longer it is, the worse it is predicted."""
FORCED_PREFILL_S = 0.02
"""The longest prefill batch for which streams wait though their playback runs dry."""
AUDIO_MARGIN_S = 0.05
"""A codec step ends this much before a stream needs its audio: a prefill batch may come before it."""
FRAMES_MARGIN_S = 0.01
"""A decode step ends this much before a stream needs its frame."""
SOON_S = 0.1
"""Frames whose playback comes within this time are made audio before the next frames."""
MOST_CODEC_STREAMS = 64
"""Streams of the largest codec step: larger ones save no time, and a request that arrives meanwhile waits."""
UNBATCHED_STREAMS = 2
"""Streams of a decode step of a backend that takes them one after another."""
ENOUGH_S = 2.0
"""Audio in hand with which a stream can do without the device, or without its row, for a while."""


# ---- what is known


@dataclass(slots=True)
class Stream:
    """One stream as the policy knows it. It belongs to an utterance, which keeps it up to date."""

    place: int = 0
    """Position in the engine's list."""
    deadline: float = math.inf
    """When its playback runs out of audio, audio under way included; infinite before its first chunk."""
    requested_at: float = 0.0
    frames: int = 0
    """Decoded, and not given to the codec."""
    chunk_ready: bool = False
    """These frames fill a chunk."""
    next_at: float = math.inf
    """When it may be given a frame without getting too far ahead of playback; infinite where it can get none."""
    owner: str = ""
    mark: int = -1
    """Frames given to the codec and handed out when ``next_at`` was found."""


@dataclass(frozen=True, slots=True)
class View:
    """All that :func:`pick` looks at."""

    streams: Sequence[Stream]
    """Those that have frames, or may be given one now or later."""
    costs: Costs
    budget: Budget
    held: int = 0
    """Streams that hold a row."""
    running: int = 0
    """Those of them that have work."""
    waiting: int = 0
    """Requests that wait for a row."""
    resuming: int = 0
    """Streams that hold a row and need a prefill to go on."""
    owed: bool = False
    """The first of those that wait belongs to an owner that has so few rows that it waits for nobody."""
    batched: bool = True
    """The talker decodes many streams at about the cost of one."""
    decode_limit: float = math.inf
    """Streams of one decode step."""
    codec_limit: float = math.inf
    """Streams of one codec step."""


# ---- what is next


class PrefillLaunch(NamedTuple):
    """Begin waiting requests, and continue streams that lost their place in the backend."""

    rows: float = 0.0
    """At most this many rows of prompts of waiting requests."""
    streams: float = math.inf
    """At most this many waiting requests."""
    forced_rows: float = 0.0
    """At most this many rows, but one request at least, where not even one fits: streams wait though they run dry."""


class CodecLaunch(NamedTuple):
    """Make audio of the frames of these streams."""

    places: Sequence[int]
    wait: bool = False
    """Wait for the result: these are the last of the first chunks."""


class DecodeLaunch(NamedTuple):
    """Make a frame for each of these streams."""

    places: Sequence[int]


class Rest(NamedTuple):
    """Launch nothing before this moment, unless something arrives."""

    until: float


NextLaunch = PrefillLaunch | CodecLaunch | DecodeLaunch | Rest
_by_deadline = attrgetter("deadline")
_by_request = attrgetter("requested_at")


def pick(view: View, now: float) -> NextLaunch:
    """Return the next launch; the rules are in the module's docstring."""
    return _prefill(view, now) or _serve(view, now) or _prefill(view, now, idle=True) or _rest(view, now)


def fitting(sizes: Sequence[int], most: float) -> int:
    """Return how many of these, in their order, are together no more than ``most``."""
    return bisect_right(list(accumulate(sizes)), most)


# ---- prefill


class Room(NamedTuple):
    """Limits of the next prefill batch, so that nobody's playback runs dry."""

    rows: float
    streams: float


def room(view: View, now: float) -> Room:
    """Return what a prefill batch that begins now may hold. After it, what was decoded is made audio; then the others
    get a frame each, with the new streams, by deadline.
    """
    soon, decoded, others = now + SOON_S, list[Stream](), list[Stream]()
    for one in view.streams:
        if one.deadline == math.inf:
            continue
        if one.frames:
            if one.chunk_ready or one.deadline < soon:
                decoded.append(one)
        elif one.next_at <= soon:
            others.append(one)
    if not decoded and not others:
        return Room(math.inf, math.inf)
    decoded.sort(key=_by_deadline)
    others.sort(key=_by_deadline)
    costs, slowdown = view.costs, view.costs.slowdown
    each_s = slowdown * costs.audio_each_s
    launch_s = slowdown * costs.frames.predict(len(decoded) + len(others))
    done_at, least_s, before = now, math.inf, 0
    for one in decoded:
        done_at += one.frames * each_s
        least_s = min(least_s, one.deadline - done_at)
    first_s = FRAME_SECONDS - MARGIN_S - (done_at - now) - launch_s
    done_at += launch_s
    soon = now + costs.prefill.fixed_s + FRAME_SECONDS
    for one in others:
        done_at += each_s
        least_s = min(least_s, one.deadline - done_at)
        before += one.deadline < soon
    rows = costs.prefill.size_within(min(least_s - MARGIN_S, LONG_PREFILL_S))
    return Room(rows, first_s / each_s - before if each_s else math.inf)


def _prefill(view: View, now: float, *, idle: bool = False) -> PrefillLaunch | None:
    """Return a new prefill batch, if one may begin. A device that would be ``idle`` need not save its time."""
    costs, budget, launch = view.costs, view.budget, PrefillLaunch()
    sustainable = costs.sustainable_streams - view.running
    if view.waiting and (view.owed or not view.batched):
        launch = PrefillLaunch(math.inf)
    elif view.waiting and not view.held:
        launch = PrefillLaunch(math.inf, sustainable, forced_rows=1.0)  # however long its prompt is
    elif view.waiting and sustainable >= 1:
        spare, floor = idle or budget.spare_s > 0, idle or budget.floor_s > 0
        if spare or floor:
            rows, streams = room(view, now)
            fits = min(rows, streams) >= 1
            forced = max(1.0, costs.prefill.size_within(FORCED_PREFILL_S)) if floor else 0.0
            if spare or not fits:  # else others leave time for it, but not now
                launch = PrefillLaunch(rows if fits else 0.0, min(streams, sustainable), forced)
    return launch if max(launch.rows, launch.forced_rows) >= 1 or view.resuming else None


# ---- audio and frames


def _serve(view: View, now: float) -> CodecLaunch | DecodeLaunch | None:
    """Return a codec step or a decode step: for first chunks, else by deadline. ``None``: no stream needs either."""
    opening = [one for one in view.streams if one.deadline == math.inf and (one.frames or one.next_at <= now)]
    opening.sort(key=_by_request)
    ready = [one for one in opening if one.chunk_ready]
    if ready:
        return codec_launch(ready, view, first=True)
    if opening:
        return _decode([one for one in opening if one.next_at <= now], view)
    return _codec_or_decode(view, now)


def _codec_or_decode(view: View, now: float) -> CodecLaunch | DecodeLaunch | None:
    costs = view.costs
    launch_s, each_s = costs.frames.predict(view.running), costs.audio_each_s
    decoded = [one for one in view.streams if one.frames]
    decoded.sort(key=_by_deadline)
    ready = [one for one in view.streams if one.next_at <= now]
    overloaded = costs.need(view.running) > SUSTAINABLE
    urgent_until, frame_first = -math.inf, False
    if not overloaded:  # else larger chunks cost less
        spare_s, done_at = math.inf, now + launch_s
        for one in decoded:
            done_at += one.frames * each_s
            left_s = one.deadline - done_at
            spare_s = min(spare_s, left_s)
            if left_s < AUDIO_MARGIN_S:
                urgent_until = one.deadline
        hungry_at = min((one.deadline for one in ready if not one.frames), default=math.inf)
        frame_s = launch_s + 2 * costs.most_frames * each_s + FRAMES_MARGIN_S  # with a codec step before and after it
        frame_first = spare_s > FRAMES_MARGIN_S and hungry_at - now < frame_s
    if not (frame_first and ready):
        due = [one for one in decoded if one.chunk_ready or one.deadline <= urgent_until]
        if due:
            return codec_launch(due, view)
    return _decode(_fair(ready, now) if overloaded else ready, view) if ready else None


def codec_launch(streams: Sequence[Stream], view: View, *, first: bool = False) -> CodecLaunch:
    """Return a codec step of as many of these, in their order, as one takes; one at least."""
    some = streams[: int(min(view.codec_limit, MOST_CODEC_STREAMS))]
    count = max(1, fitting([one.frames for one in some], view.costs.most_frames))
    return CodecLaunch([one.place for one in some[:count]], wait=first and count >= len(streams))


def _decode(streams: Sequence[Stream], view: View) -> DecodeLaunch:
    most = view.decode_limit if view.batched else min(view.decode_limit, UNBATCHED_STREAMS)
    if most < len(streams):
        streams = sorted(streams, key=_by_deadline)[: int(most)]
    return DecodeLaunch([one.place for one in streams])


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


def _rest(view: View, now: float) -> Rest:
    return Rest(min((one.next_at for one in view.streams if one.next_at > now), default=math.inf))
