"""The audio of one codec call on its way to the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatalker.engine.checks import check_chunks


class Download:
    """Begins to copy what a codec returned for ``codes`` to the host, without waiting for the device that computes it.

    Nothing is copied when :attr:`complaint` says that it is malformed.
    """

    def __init__(self, chunks: list[Tensor], codes: Sequence[Tensor]) -> None:
        self.complaint = check_chunks(chunks, codes)
        self._done: torch.cuda.Event | None = None
        if self.complaint is not None:
            return
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
