"""The audio of one codec call on its way to the host."""

import torch
from torch import Tensor


class Download:
    """Begins to copy what a codec returned to the host, without waiting for the device that computes it."""

    def __init__(self, chunks: list[Tensor]) -> None:
        self._done: torch.cuda.Event | None = None
        device = chunks[0].device
        if device.type != "cuda":
            self._chunks = [chunk.cpu() for chunk in chunks]
            return
        # one copy for all, into page-locked memory
        whole = torch.cat(chunks).to("cpu", non_blocking=True)
        self._chunks = list(torch.split(whole, [len(chunk) for chunk in chunks]))
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(device))

    @property
    def under_way(self) -> bool:
        """:meth:`wait` may have to wait."""
        return self._done is not None

    def wait(self) -> list[Tensor]:
        """The chunks on the CPU."""
        if self._done is not None:
            self._done.synchronize()
        return self._chunks
