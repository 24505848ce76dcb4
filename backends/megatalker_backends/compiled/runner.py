"""Runs frames for batches of stream rows: plain operations of any batch size, or compiled units of fixed sizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from megatalker_backends.compiled.model import PLAIN, SPAN_STEP, Model, Units


@dataclass(frozen=True, slots=True)
class Share:
    """One stream's share of a batch."""

    row: int
    position: int
    """Position to which its talker step is written."""
    forced: Sequence[int] | None
    """One code for each group, or ``None`` to choose them."""
    text: Tensor
    """``[hidden_size]`` of any float type, on any device."""


class BatchFrames(NamedTuple):
    """A frame of each stream of a batch, in its order."""

    codes: list[list[int]]
    first_logits: Tensor
    """``[B, talker vocab]`` float32; valid until the next call, as ``rest_logits``."""
    rest_logits: Tensor
    """``[B, groups - 1, predictor vocab]`` float32"""


class Inputs(NamedTuple):
    """A batch on the device."""

    rows: Tensor
    """``[B]`` int64"""
    positions: Tensor
    """``[B]`` int64"""
    forced: Tensor
    """``[B, groups]`` int64, negative where the code is to be chosen."""
    text: Tensor
    """``[B, hidden_size]`` float32"""


class FrameRunner(Protocol):
    """How a decoder runs its model."""

    def prefill(self, row: int, embeds: Tensor) -> None:
        """Run a prompt ``[T, hidden_size]`` into a row."""

    def begin(self, shares: Sequence[Share]) -> Callable[[], BatchFrames]:
        """Start one frame for each share; rows are distinct. The function returned waits for it."""


class DirectRunner:
    """Calls the model's units one after another.

    Args:
        model: to run.
        units: compiled units by batch size. A batch is split into parts of the largest size and the rest, which is
            padded with the scratch row. Without any, plain operations take a batch of any size at once.
    """

    def __init__(self, model: Model, units: Mapping[int, Units] | None = None) -> None:
        self._model = model
        self._units = units or {}

    def prefill(self, row: int, embeds: Tensor) -> None:
        device = self._model.device
        embeds = embeds.to(device)
        self._model.prefill(torch.tensor([row], device=device), embeds, torch.tensor([len(embeds) - 1], device=device))

    def begin(self, shares: Sequence[Share]) -> Callable[[], BatchFrames]:
        return lambda: self.run(shares)

    def run(self, shares: Sequence[Share]) -> BatchFrames:
        """One frame for each share."""
        parts = [self._part(part) for part in self._split(shares)]
        return BatchFrames(
            [codes for part in parts for codes in part.codes],
            torch.cat([part.first_logits for part in parts]),
            torch.cat([part.rest_logits for part in parts]),
        )

    def _split(self, shares: Sequence[Share]) -> Iterator[Sequence[Share]]:
        most = max(self._units, default=len(shares))
        return (shares[start : start + most] for start in range(0, len(shares), most))

    def _part(self, shares: Sequence[Share]) -> BatchFrames:
        model, count = self._model, len(shares)
        size = min((size for size in self._units if size >= count), default=count)
        units = self._units.get(size, PLAIN)
        rows, positions, forced, text = to_device(model, shares, size)
        frame = model.predict(units, rows, forced)
        model.talk(units, rows, positions, frame.codes, text, span_length(shares))
        return BatchFrames(frame.codes[:count].tolist(), frame.first_logits[:count], frame.rest_logits[:count])


def span_length(shares: Sequence[Share]) -> int:
    """Positions of the cache that a batch must look at."""
    return (max(share.position for share in shares) // SPAN_STEP + 1) * SPAN_STEP


def idle_shares(model: Model, count: int) -> list[Share]:
    """A batch of the scratch row alone, for warming up: no stream's state changes."""
    text = torch.zeros(model.config.talker.hidden_size, device=model.device)
    return [Share(model.scratch_row, 0, None, text)] * count


def pack(model: Model, shares: Sequence[Share], size: int) -> Tensor:
    """Row, position and forced codes of a batch, and the scratch row as padding: ``[size, 2 + groups]`` int64, CPU."""
    free = [-1] * model.config.num_code_groups
    numbers = [[share.row, share.position, *(free if share.forced is None else share.forced)] for share in shares]
    numbers += [[model.scratch_row, 0, *free]] * (size - len(shares))
    return torch.tensor(numbers)


def unpack(numbers: Tensor, text: Tensor) -> Inputs:
    """The parts of what :func:`pack` made, as units take them."""
    return Inputs(numbers[:, 0].clone(), numbers[:, 1].clone(), numbers[:, 2:].clone(), text)


def to_device(model: Model, shares: Sequence[Share], size: int) -> Inputs:
    """A batch as tensors, padded to ``size``."""
    text = torch.zeros(size, model.config.talker.hidden_size, device=model.device)
    for place, share in enumerate(shares):
        text[place] = share.text
    return unpack(pack(model, shares, size).to(model.device), text)
