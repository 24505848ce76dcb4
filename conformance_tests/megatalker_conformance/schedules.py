"""Schedules: which streams start, advance and are released when.

Made at random or to a plan; plain data, so that they can be shortened and printed.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

from megatalker_conformance.scenarios import ScenarioPool

HOW = ("strided rows", "float64 rows", "16-bit rows", "another thread")
"""Unusual ways to make a call."""


@dataclass(frozen=True)
class StartStreams:
    """One ``prefill`` call."""

    streams: tuple[tuple[int, int], ...]
    """Each stream's own number, and its scenario's number in the pool."""
    how: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DecodeStreams:
    """One ``decode`` call."""

    streams: tuple[int, ...]
    how: frozenset[str] = frozenset()
    """Ways of the call: those of :class:`StartStreams`, ``logits``, ``waited for later`` and ``taken in a thread``."""


@dataclass(frozen=True)
class ReleaseStream:
    """One ``release`` call."""

    stream: int


@dataclass(frozen=True)
class RefusedStart:
    """One ``prefill`` call whose last prompt has no memory behind it: the decoder must raise, and hold nothing."""

    scenarios: tuple[int, ...]


@dataclass(frozen=True)
class Upkeep:
    """One call of ``warmup`` or ``prepare``."""

    method: Literal["warmup", "prepare"]


Action = StartStreams | DecodeStreams | ReleaseStream | RefusedStart | Upkeep


@dataclass
class _OpenStream:
    scenario: int
    left: int
    """Steps it can still take."""
    length: int
    """Prompt rows and steps so far."""


@dataclass
class ScheduleWriter:
    """Writes a schedule down while keeping count of what each stream can still do.

    Args:
        pool: of scenarios.
        width: streams held at the same time, at most.
        chance: what everything is drawn from.
        logits: whether the decoder can return them.
    """

    pool: ScenarioPool
    width: int
    chance: random.Random
    logits: bool
    actions: list[Action] = field(default_factory=list)
    live: dict[int, _OpenStream] = field(default_factory=dict)
    _numbers: Iterable[int] = field(default_factory=count)

    @property
    def ready(self) -> list[int]:
        """Streams with a step left."""
        return [stream for stream, live in self.live.items() if live.left]

    @property
    def room(self) -> int:
        return self.width - len(self.live)

    def start(self, *scenarios: int) -> None:
        """Start streams in one call."""
        streams = tuple(zip(self._numbers, scenarios, strict=False))
        for stream, scenario in streams:
            self.live[stream] = _OpenStream(scenario, self.pool.length(scenario), self.pool.rows(scenario))
        self.actions.append(StartStreams(streams, self._how()))

    def decode(self, streams: Sequence[int]) -> None:
        """Decode streams in one call, in this order."""
        for stream in streams:
            self.live[stream].left -= 1
            self.live[stream].length += 1
        how = {way for way in ("waited for later", "taken in a thread") if self.chance.random() < 0.2}
        if self.logits and self.chance.random() < 0.6:
            how.add("logits")
        self.actions.append(DecodeStreams(tuple(streams), self._how() | how))

    def release(self, stream: int) -> None:
        del self.live[stream]
        self.actions.append(ReleaseStream(stream))

    def release_finished(self, share: float = 1.0) -> None:
        """Release streams without a step left, or a random ``share`` of them."""
        for stream in [stream for stream, live in self.live.items() if not live.left]:
            if self.chance.random() < share:
                self.release(stream)

    def shuffled(self, streams: Iterable[int], most: int | None = None) -> list[int]:
        """Some of them in any order; the last one drawn first."""
        chosen = list(streams)
        self.chance.shuffle(chosen)
        return chosen[:most]

    def _how(self) -> frozenset[str]:
        return frozenset(how for how in HOW if self.chance.random() < 0.15)


def tidied(actions: Sequence[Action], pool: ScenarioPool, width: int) -> list[Action]:
    """Return the actions of a schedule that can be executed."""
    left: dict[int, int] = {}
    kept: list[Action] = []
    for action in actions:
        match action:
            case StartStreams(streams):
                streams = tuple(each for each in streams if each[0] not in left)[: width - len(left)]
                left |= {stream: pool.length(scenario) for stream, scenario in streams}
                if streams:
                    kept.append(replace(action, streams=streams))
            case DecodeStreams(steps):
                steps = tuple(stream for stream in steps if left.get(stream))
                for stream in steps:
                    left[stream] -= 1
                if steps:
                    kept.append(replace(action, streams=steps))
            case ReleaseStream(stream):
                if left.pop(stream, None) is not None:
                    kept.append(action)
            case RefusedStart(scenarios):
                if len(scenarios) <= width - len(left):
                    kept.append(action)
            case Upkeep():
                kept.append(action)
    return kept


def streams(actions: Iterable[Action]) -> list[int]:
    """Return the streams that are started."""
    return [stream for action in actions if isinstance(action, StartStreams) for stream, _ in action.streams]


def only(actions: Iterable[Action], streams: Iterable[int]) -> list[Action]:
    """Return the part of a schedule that concerns these streams."""
    kept = set(streams)
    left = (_of(action, kept) for action in actions)
    return [action for action in left if action is not None]


def _of(action: Action, kept: set[int]) -> Action | None:
    match action:
        case StartStreams(begun):
            started = tuple(each for each in begun if each[0] in kept)
            return replace(action, streams=started) if started else None
        case DecodeStreams(steps):
            advanced = tuple(stream for stream in steps if stream in kept)
            return replace(action, streams=advanced) if advanced else None
        case ReleaseStream(stream):
            return action if stream in kept else None
        case RefusedStart() | Upkeep():
            return action


def smaller(action: Action) -> Iterator[Action]:
    """Yield smaller actions that may show the same fault: narrower and plainer calls."""
    if isinstance(action, DecodeStreams) and len(action.streams) > 1:
        for place in range(len(action.streams)):
            yield replace(action, streams=action.streams[:place] + action.streams[place + 1 :])
    if isinstance(action, StartStreams | DecodeStreams):
        for how in sorted(action.how):
            yield replace(action, how=action.how - {how})


def name_of(stream: int) -> str:
    """``A`` to ``Z``, then ``A1`` and so on."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[stream % 26] + (str(stream // 26) if stream >= 26 else "")


def described(actions: Sequence[Action], pool: ScenarioPool) -> str:
    """The schedule for people: its streams, then a line for each call."""
    started = (each for action in actions if isinstance(action, StartStreams) for each in action.streams)
    lines = [f"{name_of(stream)}: {pool.scenarios[scenario]}" for stream, scenario in started]
    for number, action in enumerate(actions, 1):
        match action:
            case StartStreams(streams, how):
                call = f"prefill {' '.join(name_of(stream) for stream, _ in streams)}"
            case DecodeStreams(steps, how):
                call = f"decode {' '.join(map(name_of, steps))}"
            case ReleaseStream(stream):
                call, how = f"release {name_of(stream)}", frozenset()
            case RefusedStart(scenarios):
                call, how = f"prefill {len(scenarios)} more, the last one without memory: an error", frozenset()
            case Upkeep(method):
                call, how = method, frozenset()
        lines.append(f"{number:3} {call}" + (f" ({', '.join(sorted(how))})" if how else ""))
    return "\n".join(lines)
