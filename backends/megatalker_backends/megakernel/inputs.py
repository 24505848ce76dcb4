"""Inputs of launches: the rows of prompts, text rows, and the sampling parameters of streams."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from megatalker.sampling import SamplingParams
from megatalker_kernels.constants import CHUNK
from megatalker_kernels.params import Sampling, sampling, sampling_filter
from megatalker_kernels.transfer import send

_filter = lru_cache(64)(sampling_filter)


@dataclass(frozen=True, slots=True, eq=False)
class SlotPrompt:
    """The prompt of the stream in a slot."""

    slot: int
    embeds: Tensor
    """``[rows, hidden]`` on the device."""
    known: int
    """Rows at the head whose keys and values are in the stream's pages already; fewer than all."""

    @property
    def rows(self) -> int:
        """All rows, known ones too."""
        return self.embeds.shape[0]


def packed(prompts: Sequence[SlotPrompt], most_rows: int, most_chunks: int) -> Iterator[list[tuple[SlotPrompt, range]]]:
    """Yield the positions of each launch, prompt after prompt, without gaps.

    Args:
        prompts: in the order in which they are taken.
        most_rows: rows of one launch, at most.
        most_chunks: pieces of ``CHUNK`` positions that the rows of one launch attend to, at most; a single row may
            have more.
    """
    launch: list[tuple[SlotPrompt, range]] = []
    rows = chunks = 0
    for prompt in prompts:
        begin = prompt.known
        while begin < prompt.rows:
            wanted = begin // CHUNK + 1  # by each position up to the next piece's first
            count = min(prompt.rows - begin, wanted * CHUNK - begin, most_rows - rows, (most_chunks - chunks) // wanted)
            if count <= 0 and rows:
                yield launch
                launch, rows, chunks = [], 0, 0
                continue
            count = max(count, 1)
            if launch and launch[-1][0] is prompt:
                launch[-1] = prompt, range(launch[-1][1].start, begin + count)
            else:
                launch.append((prompt, range(begin, begin + count)))
            begin, rows, chunks = begin + count, rows + count, chunks + count * wanted
    if launch:
        yield launch


class TextFeed:
    """Puts the text rows of a launch where the kernel reads them.

    Args:
        target: ``[rows, hidden]`` float32 on the device.
    """

    def __init__(self, target: Tensor) -> None:
        self._target = target
        self._staging = torch.empty(target.shape, pin_memory=target.device.type == "cuda")

    def put(self, rows: list[Tensor]) -> None:
        """Send rows ``[hidden]``, of any float type, on any device.

        The codes of the launch before must have been waited for: its rows have left the staging area then.
        """
        target, devices = self._target[: len(rows)], {row.device for row in rows}
        if devices == {self._staging.device}:
            target.copy_(self._staging[: len(rows)].copy_(_stacked(rows)), non_blocking=True)
            return
        if devices != {target.device}:
            rows = [send(row, target.device) for row in rows]
        target.copy_(_stacked(rows))


def _stacked(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows) if len(rows) > 1 else rows[0][None]


def kernel_sampling(params: SamplingParams) -> Sampling:
    """Return a stream's sampling parameters in the kernel's structure."""
    talker = _filter(do_sample=params.do_sample, temperature=params.temperature, top_k=params.top_k, top_p=params.top_p)
    predictor = _filter(
        do_sample=params.predictor_do_sample,
        temperature=params.predictor_temperature,
        top_k=params.predictor_top_k,
        top_p=params.predictor_top_p,
    )
    return sampling(
        talker, predictor, seed=params.seed, penalty=params.repetition_penalty, min_frames=params.min_new_tokens
    )
