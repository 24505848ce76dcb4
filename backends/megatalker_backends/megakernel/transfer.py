"""Text rows on their way to the device."""

import torch
from torch import Tensor

from megatalker_kernels.transfer import send


class TextFeed:
    """Puts the text rows of a launch where the kernel reads them.

    Args:
        target: ``[rows, hidden]`` float32 on the device.
    """

    def __init__(self, target: Tensor) -> None:
        self._target = target
        self._staging = torch.empty(target.shape, pin_memory=target.device.type == "cuda")

    def put(self, rows: list[Tensor]) -> None:
        """``[hidden]`` each, of any float type, on any device.

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
