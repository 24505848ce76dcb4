"""Shortens a failing schedule: fewer streams, fewer calls, narrower calls, plainer calls, as long as it fails."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from megatalker_conformance.schedules import Action, Decode, Release, Start

Fails = Callable[[list[Action]], bool]
Tidy = Callable[[Sequence[Action]], list[Action]]


def shortened(
    actions: Sequence[Action], fails: Fails, tidy: Callable[[Sequence[Action]], list[Action]], cost: int
) -> list[Action]:
    """The shortest failing schedule that was found.

    Args:
        actions: a failing schedule.
        fails: plays a schedule.
        tidy: leaves out what cannot be done.
        cost: calls to play for this, at most.
    """
    best = tidy(actions)

    def attempts() -> Iterator[list[Action]]:
        yield from _without_streams(best)
        yield from _without_calls(best)
        yield from _narrower(best)
        yield from _plainer(best)

    tried: set[tuple[Action, ...]] = set()
    progress = True
    while progress:
        progress = False
        for attempt in attempts():
            shorter = tidy(attempt)
            if tuple(shorter) in tried or shorter == best or not shorter:
                continue
            tried.add(tuple(shorter))
            cost -= len(shorter)
            if cost < 0:
                return best
            if fails(shorter):
                best, progress = shorter, True
                break
    return best


def _chunks(items: Sequence[object]) -> Iterator[slice]:
    """Halves, quarters and so on, down to single ones."""
    size = len(items)
    while size > 1:
        size = (size + 1) // 2
        yield from (slice(start, start + size) for start in range(0, len(items), size))


def _without_streams(actions: Sequence[Action]) -> Iterator[list[Action]]:
    streams = [stream for action in actions if isinstance(action, Start) for stream, _ in action.streams]
    for chunk in _chunks(streams):
        gone = set(streams[chunk])
        yield [kept for action in actions if (kept := _spared(action, gone)) is not None]


def _spared(action: Action, gone: set[int]) -> Action | None:
    match action:
        case Start(streams):
            return replace(action, streams=tuple(each for each in streams if each[0] not in gone))
        case Decode(streams):
            return replace(action, streams=tuple(each for each in streams if each not in gone))
        case Release(stream):
            return None if stream in gone else action


def _without_calls(actions: Sequence[Action]) -> Iterator[list[Action]]:
    for chunk in _chunks(actions):
        yield [*actions[: chunk.start], *actions[chunk.stop :]]


def _narrower(actions: Sequence[Action]) -> Iterator[list[Action]]:
    for index, action in enumerate(actions):
        if isinstance(action, Decode) and len(action.streams) > 1:
            for place in range(len(action.streams)):
                streams = action.streams[:place] + action.streams[place + 1 :]
                yield [*actions[:index], replace(action, streams=streams), *actions[index + 1 :]]


def _plainer(actions: Sequence[Action]) -> Iterator[list[Action]]:
    for index, action in enumerate(actions):
        if not isinstance(action, Release):
            for how in sorted(action.how):
                yield [*actions[:index], replace(action, how=action.how - {how}), *actions[index + 1 :]]
