"""Calls of a codec as actions: drawn at random, run on a codec, and checked against the pool."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megatalker_conformance.codec_pool import CodePool

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "int64": lambda codes: codes.clone(),
    "int32": lambda codes: codes.to(torch.int32),
    "int16": lambda codes: codes.to(torch.int16),
    "a transposed int64 tensor": lambda codes: codes.T.clone(memory_format=torch.contiguous_format).T,
    "every other row of an int64 tensor": lambda codes: codes.repeat_interleave(2, dim=0)[::2],
    "columns of a wider int64 tensor": lambda codes: torch.cat((codes.flip(1), codes), dim=1)[:, codes.shape[1] :],
}
"""Memory layouts of the codes of a call; each function makes a tensor of its own."""


@dataclass(frozen=True)
class OpenCall:
    """A state at the start of speech, which will get the codes of a sequence of the pool."""

    state: int
    sequence: int

    def __str__(self) -> str:
        return f"s{self.state} = open()"


@dataclass(frozen=True)
class Copy:
    """A copy of a state, which goes on along another sequence or the same."""

    state: int
    source: int
    sequence: int

    def __str__(self) -> str:
        return f"s{self.state} = s{self.source}.copy()"


@dataclass(frozen=True)
class Drop:
    """The caller forgets a state."""

    state: int

    def __str__(self) -> str:
        return f"del s{self.state}"


@dataclass(frozen=True)
class DecodeCall:
    """One call: the next frames of some states."""

    frames: tuple[tuple[int, int], ...]
    """State and number of frames, in the order of the call."""
    form: str = "int64"
    elsewhere: bool = False
    """Whether the call is made in another thread."""

    def __str__(self) -> str:
        states = ", ".join(f"s{state}" for state, _ in self.frames)
        counts = ", ".join(str(count) for _, count in self.frames)
        notes = f"  # codes as {self.form}" * (self.form != "int64") + "  # in another thread" * self.elsewhere
        return f"decode([{states}], frames=[{counts}]){notes}"


@dataclass(frozen=True)
class WarmUpCodec:
    """The codec's own warming up."""

    def __str__(self) -> str:
        return "warmup()"


Action = OpenCall | Copy | Drop | DecodeCall | WarmUpCodec
_CALL = 8
"""Frames that cost as much as the rest of a call."""


def cost(actions: Iterable[Action]) -> int:
    """Return the length of a schedule in calls; a call with many frames or states counts as several."""
    calls = [action.frames for action in actions if isinstance(action, DecodeCall)]
    return sum(1 + sum(_CALL // 2 + count for _, count in frames) // _CALL for frames in calls)


def states(actions: Iterable[Action]) -> list[int]:
    """Return the states that are opened or copied."""
    return [action.state for action in actions if isinstance(action, OpenCall | Copy)]


def only(actions: Iterable[Action], states: Iterable[int]) -> list[Action]:
    """Return the part of a schedule that concerns these states."""
    kept, left = set(states), list[Action]()
    for action in actions:
        if isinstance(action, DecodeCall):
            frames = tuple((state, count) for state, count in action.frames if state in kept)
            left += [replace(action, frames=frames)] if frames else []
        elif isinstance(action, WarmUpCodec) or action.state in kept:
            left.append(action)
    return left


def split_calls(actions: Iterable[Action], width: int) -> list[Action]:
    """Return the schedule in calls of at most ``width`` states."""
    split = list[Action]()
    for action in actions:
        if isinstance(action, DecodeCall):
            starts = range(0, len(action.frames), width)
            split += (replace(action, frames=action.frames[start : start + width]) for start in starts)
        else:
            split.append(action)
    return split


def smaller(action: Action) -> Iterator[Action]:
    """Yield smaller actions that may show the same fault: plainer calls, of fewer states and frames."""
    if not isinstance(action, DecodeCall):
        return
    if action.elsewhere or action.form != "int64":
        yield DecodeCall(action.frames)
    for size in (len(action.frames) // 2, 1):
        if 0 < size < len(action.frames):
            for start in range(0, len(action.frames), size):
                yield replace(action, frames=action.frames[:start] + action.frames[start + size :])
    for index, (state, count) in enumerate(action.frames):
        for fewer in sorted({1, count // 2, count - 1} - {0, count}):
            yield replace(action, frames=(*action.frames[:index], (state, fewer), *action.frames[index + 1 :]))


class Draw:
    """Draws schedules.

    Args:
        pool: where codes come from.
        width: the most states of one call.
        seed: the same one draws the same.
    """

    def __init__(self, pool: CodePool, width: int, seed: str) -> None:
        self._pool = pool
        self._width = width
        self._random = random.Random(seed)
        self._position: dict[int, int] = {}
        self._sequence: dict[int, int] = {}
        self._opened = 0

    def schedule(self, frames: int) -> list[Action]:
        """About as many frames in all."""
        choose, actions = self._random, list[Action]()
        for _ in range(choose.randint(1, self._width)):
            actions.append(self._open())
        while frames > 0:
            kind = choose.choices(("decode", "open", "copy", "drop"), (12, 2, 3, 2))[0]
            if kind == "open" or not self._position:
                actions.append(self._open())
            elif kind == "copy":
                actions.append(self._copy())
            elif kind == "drop":
                state = choose.choice(sorted(self._position))
                del self._position[state]
                actions.append(Drop(state))
            else:
                call = self._decode()
                actions.append(call)
                frames -= cost([call])
        return actions

    def of_widths(self, widths: Sequence[int]) -> list[Action]:
        """Calls of these widths in any order, a frame of each of some states of any age."""
        actions = list[Action]()
        for width in self._random.sample(widths, len(widths)):
            while len(self._position) < width:
                actions.append(self._open())
            actions.append(self._take(self._random.sample(sorted(self._position), width), 1))
        return actions

    def _open(self) -> OpenCall:
        return OpenCall(self._new(self._random.randrange(self._pool.drawn), 0), self._sequence[self._opened])

    def _copy(self) -> Copy:
        source = self._random.choice(sorted(self._position))
        position = self._position[source]
        sequence = self._random.choice(self._pool.agreeing(self._sequence[source], position))
        return Copy(self._new(sequence, position), source, sequence)

    def _new(self, sequence: int, position: int) -> int:
        self._opened += 1
        self._sequence[self._opened], self._position[self._opened] = sequence, position
        return self._opened

    def _decode(self) -> DecodeCall:
        choose = self._random
        there = sorted(self._position)
        most = min(len(there), self._width)
        states = choose.sample(there, choose.choice((1, choose.randint(1, most), most)))
        shared = self._count(len(states)) if choose.random() < 0.3 else None
        return self._take(states, shared)

    def _take(self, states: Sequence[int], shared: int | None) -> DecodeCall:
        choose = self._random
        frames = tuple((state, shared or self._count(len(states))) for state in states)
        for state, count in frames:
            self._position[state] += count
            if self._position[state] >= len(self._pool.sequences[self._sequence[state]]):
                del self._position[state]  # its codes are used up
        form = choose.choice(sorted(FORMS)) if choose.random() < 0.5 else "int64"
        return DecodeCall(frames, form, choose.random() < 0.1)

    def _count(self, states: int) -> int:
        choose = self._random
        longest = choose.choices((1, 3, 12, 40, 130), (6, 6, 3, 1, 2 if states < 4 else 0))[0]
        return choose.randint(1, longest)
