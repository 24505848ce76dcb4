"""Fills in the kernel's parameters, launches it, and reports how it ended."""

import ctypes
import time
from typing import Any, Protocol

import torch

from megatalker_kernels.constants import PHASE_BITS, THREADS, StatusWord, Wait
from megatalker_kernels.errors import KernelStalledError, ToolchainError
from megatalker_kernels.model import PackedModel
from megatalker_kernels.module import Arguments
from megatalker_kernels.params import POINTERS_FIRST, POINTERS_LAST, POINTERS_MIDDLE, Structures, fill_launch
from megatalker_kernels.schedule import Launch, schedule
from megatalker_kernels.shapes import shared_bytes
from megatalker_kernels.workspace import Workspace

WAITS = {
    Wait.RESULTS: "for results of other blocks",
    Wait.RING: "for weights, or stored keys and values, to arrive",
}
LAUNCHES_TAGGED = 2 ** (32 - PHASE_BITS)
"""After as many launches tags come again."""
TICKETS = 2**31 - LAUNCHES_TAGGED
"""A multiple of the above, so that results are forgotten in time when tickets start over, too."""


class Module(Protocol):
    """The compiled kernel where it runs; see :class:`~megatalker_kernels.module.GpuModule`."""

    clock_hz: int
    """Ticks a second of the clock that the kernel reads."""

    def entry(self, name: str, *, shared_bytes: int = 0) -> Any:
        """A kernel by name, allowed to use this much dynamic shared memory."""

    def start(self, function: Any, blocks: int, threads: int, arguments: Arguments) -> None:
        """Launch."""

    def start_together(self, function: Any, blocks: int, threads: int, shared_bytes: int, arguments: Arguments) -> None:
        """Launch cooperatively: all blocks run at once."""

    def synchronize(self) -> None:
        """Wait for all launches."""


class Kernel:
    """The kernel with its model and workspace, ready to launch from one thread at a time.

    Args:
        model: packed weights; the shape is the one the kernel was compiled for.
        workspace: on the same device.
        module: compiled for this shape, on the same device.
        stall_timeout_s: how long a wait inside the kernel may take before the launch is abandoned.

    Raises:
        ToolchainError: it was compiled for other structures than this package describes.
    """

    def __init__(
        self, model: PackedModel, workspace: Workspace, module: Module, *, stall_timeout_s: float = 0.05
    ) -> None:
        self._model = model
        self._space = workspace
        self._shape = model.shape
        self._device = model.device
        self._stall_timeout_s = stall_timeout_s
        self._module = module
        self._shared_bytes = shared_bytes(self._shape)
        self._entry = self._module.entry("megatalker_frame", shared_bytes=self._shared_bytes)
        self.clock_hz = self._module.clock_hz
        self._params = self._fill_params(int(stall_timeout_s * self.clock_hz))
        self._arguments = Arguments(self._params)
        self._codes = workspace.codes.numpy()
        self._status = workspace.status.numpy()
        self._ticket = 0
        self._last: Launch | None = None
        self._check_layout()

    def run(self, launch: Launch) -> int:
        """Launch and return at once, with a ticket for :meth:`wait`."""
        self._ticket = self._ticket % TICKETS + 1
        to, space = self._params.to, self._space
        to.ticket = self._ticket
        to.talker_kv, to.pages = space.talker_kv.data_ptr(), space.pages  # the workspace may have grown
        if self._ticket % LAUNCHES_TAGGED == 0:
            space.forget_results()
        fill_launch(self._params.launch, launch)
        self._last = launch
        self._module.start_together(self._entry, self._shape.blocks, THREADS, self._shared_bytes, self._arguments)
        return self._ticket

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        """The codes of the last decode launch, as soon as they exist; the talker may still be at work.

        Raises:
            KernelStalledError: this launch or an earlier one was abandoned. The kernel can be launched again, but the
                streams' state is lost.
        """
        rows = len(self._last.rows) if self._last is not None else 0
        tickets = self._codes[:rows, -1]
        deadline = time.perf_counter() + 1.0 + 4 * self._stall_timeout_s
        while not (tickets == ticket).all():
            if self._status[StatusWord.ABORTED] or time.perf_counter() > deadline:
                self.check()
                if (tickets == ticket).all():
                    break
                raise KernelStalledError("the kernel ended without publishing codes", phase=0, block=0)
            time.sleep(0)
        return [tuple(row) for row in self._codes[:rows, :-1].tolist()]

    def check(self) -> None:
        """Wait for the device.

        Raises:
            KernelStalledError: as :meth:`wait`.
        """
        self._module.synchronize()
        status = {word: int(self._status[word]) for word in StatusWord}
        if not status[StatusWord.ABORTED]:
            return
        phase, block = status[StatusWord.PHASE], status[StatusWord.BLOCK]
        wait = WAITS[Wait(status[StatusWord.WAIT])]
        self._space.reset_after_abort()
        self._module.synchronize()
        raise KernelStalledError(
            f"the kernel was abandoned: a wait {wait} took longer than {self._stall_timeout_s * 1000:.0f} ms; "
            f"block {block} is behind, in phase {phase} ({self._phase_name(phase)})",
            phase=phase,
            block=block,
        )

    def profile(self, launch: Launch) -> torch.Tensor:
        """Run a launch and note when each block finished each phase, and when it went on.

        Returns:
            int64 ``[blocks, phases + 1, 2]`` ticks of each block's own clock, on the CPU: on finishing phase n, and on
            having what the blocks published in it. Phase 0 is the start.
        """
        shape, phases = self._shape, sum(1 for _ in schedule(self._shape, launch))
        ticks = torch.zeros(shape.blocks, shape.max_phases, 2, dtype=torch.int64, device=self._device)
        self._params.to.profile = ticks.data_ptr()
        self.run(launch)
        self._params.to.profile = None
        self.check()
        return ticks[:, : phases + 1].cpu()

    def _phase_name(self, number: int) -> str:
        if self._last is None or number < 1:
            return "unknown"
        for index, phase in enumerate(schedule(self._shape, self._last), start=1):
            if index == number:
                return str(phase)
        return "the end"

    def _fill_params(self, ticks: int) -> Any:
        structures = Structures(self._shape)
        params: Any = structures.params()
        model, space, to = self._model, self._space, params.to
        constants = model.constants
        values: dict[str, torch.Tensor | None] = {
            "weights": model.weights.data,
            "block_offset": model.weights.block_offset,
            "talker_norms": model.talker_norms,
            "predictor_norms": model.predictor_norms,
            "projection_bias": model.projection_bias,
            "talker_rope": model.talker_rope,
            "predictor_rope": model.predictor_rope,
            "gumbel_table": model.gumbel_table,
            "decay_table": model.decay_table,
            "profile": None,
            **space.buffers(),
        }
        for name in (*POINTERS_FIRST, *POINTERS_MIDDLE, *POINTERS_LAST):
            tensor = values[name]
            setattr(to, name, None if tensor is None else tensor.data_ptr())
        to.sum_tables[:] = [table.data_ptr() for table in model.sum_tables]
        to.input_tables[:] = [table.data_ptr() for table in model.input_tables]
        to.slots, to.spin_ticks = space.slots, ticks
        to.eos, to.talker_eps, to.predictor_eps = constants.eos, constants.talker_eps, constants.predictor_eps
        return params

    def _check_layout(self) -> None:
        """Ask the compiled code for the size of its structures."""
        size = torch.zeros(1, dtype=torch.int32, device=self._device)
        pointer = Arguments(ctypes.c_void_p(size.data_ptr()))
        self._module.start(self._module.entry("megatalker_layout"), 1, 1, pointer)
        found, expected = int(size), ctypes.sizeof(self._params)
        if found != expected:
            raise ToolchainError(
                f"the kernel's parameters have {found} bytes, expected {expected}: csrc and params.py disagree"
            )
