"""The megakernel's host side, in earnest, on a device that computes nothing and takes as long as an H200 does.

So what the host takes can be measured, and changed, where there is no GPU.
"""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine.codec_stage import Download, Samples
from megatalker.interfaces import LoadContext
from megatalker_backends.megakernel.decoder import MegakernelDecoder
from megatalker_backends.megakernel.machine import Machine
from megatalker_backends.megakernel.settings import MegakernelSettings
from megatalker_kernels.launching import Kernel
from megatalker_kernels.model import PackedModel
from megatalker_kernels.module import Arguments
from megatalker_kernels.params import Structures
from megatalker_kernels.schedule import Launch
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.workspace import Workspace

Costs = tuple[list[int], list[float]]
"""Sizes of launches, and milliseconds of each, of 0.6B shapes on an H200: see docs/megakernel.md."""
PROMPTS: Costs = [8, 24, 256, 1024, 2048], [0.96, 1.03, 1.60, 4.57, 10.1]
"""Rows of a prefill launch, and its milliseconds."""
FRAMES: Costs = [1, 8, 9, 16, 32, 64, 128, 256, 512], [1.88, 2.62, 3.54, 3.70, 4.10, 5.17, 6.57, 10.2, 18.5]
"""Streams of a decode launch, and its milliseconds."""
AUDIO: Costs = [1, 8, 64, 128], [0.76, 1.2, 4.5, 8.4]
"""Frames of a codec launch, and its milliseconds."""
DISTINCT = 97
"""Frames until the codes repeat: more than a loop that the engine would take for a runaway."""
MAX_POSITIONS = 1024


class TimedDevice:
    """Does one launch after another.

    Args:
        speed: how many times as fast as an H200.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self._speed, self._free_at = speed, 0.0

    def launch(self, size: int, costs: Costs) -> float:
        """Return when the launch will be done, by ``time.monotonic``."""
        seconds = float(np.interp(size, *costs)) * 1e-3 / self._speed
        self._free_at = max(time.monotonic(), self._free_at) + seconds
        return self._free_at

    def decoder(self, checkpoint: Checkpoint, context: LoadContext[Any]) -> MegakernelDecoder:
        """Return a megakernel decoder whose launches go to this device; its speech never ends."""
        settings = MegakernelSettings(interpret=True, max_positions=MAX_POSITIONS)
        return MegakernelDecoder(checkpoint, replace(context, settings=settings))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Send launches of megakernel decoders and downloads of audio in this process to this device."""

        class TimedDownload(Download):
            def __init__(own, chunks: list[Tensor]) -> None:  # noqa: N805 - self is the device
                super().__init__(chunks)
                own._done_at = self.launch(sum(map(len, chunks)) // FRAME_SAMPLES, AUDIO)

            @property
            def under_way(own) -> bool:  # noqa: N805
                return time.monotonic() < own._done_at

            def wait(own) -> Samples:  # noqa: N805
                time.sleep(max(0.0, own._done_at - time.monotonic()))
                return super().wait()

        def machine(model: PackedModel, space: Workspace, _: MegakernelSettings) -> Machine:
            return TimedKernel(model, space, self)

        with (
            patch("megatalker.engine.codec_stage.Download", TimedDownload),
            patch("megatalker_backends.megakernel.decoder.make_machine", machine),
        ):
            yield


class IdleModule:
    """A compiled kernel that returns at once."""

    clock_hz = 10**9

    def __init__(self, shape: KernelShape) -> None:
        structures = Structures(shape)
        self._sizes = {"megatalker_layout": structures.params, "megatalker_wide_layout": structures.wide_params}

    def entry(self, name: str, *, shared_bytes: int = 0) -> str:  # noqa: ARG002 - it needs none
        return name

    def start(self, function: str, blocks: int, threads: int, arguments: Arguments) -> None:  # noqa: ARG002
        """Answer with the size of a structure: nothing else is started."""
        argument = ctypes.c_void_p.from_address(arguments.address).value
        assert argument is not None
        size = ctypes.c_void_p.from_address(argument).value
        assert size is not None
        ctypes.c_int.from_address(size).value = ctypes.sizeof(self._sizes[function])

    def start_together(self, function: str, blocks: int, threads: int, shared_bytes: int, arguments: Arguments) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing: all work is done."""


class TimedKernel(Kernel):
    """Publishes the next of a few frames when the device is done with it."""

    def __init__(self, model: PackedModel, space: Workspace, device: TimedDevice) -> None:
        module = IdleModule(model.shape)
        super().__init__(model, space, module, module)
        self._time, self._done_at, self._groups = device, 0.0, torch.arange(model.shape.code_groups)

    def run(self, launch: Launch) -> int:
        ticket, rows = super().run(launch), len(launch.rows)
        self._done_at = self._time.launch(rows, FRAMES if launch.mode == "decode" else PROMPTS)
        if launch.mode == "decode":
            codes = (self._space.wide if launch.wide else self._space).codes[:rows]
            codes[:, :-1] = (7 * (ticket % DISTINCT) + self._groups) % 32
            codes[:, -1] = ticket
        return ticket

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        while time.monotonic() < self._done_at:  # a poll, as the kernel's host side polls memory for codes
            time.sleep(0)
        return super().wait(ticket)
