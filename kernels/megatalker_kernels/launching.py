"""Fills in the kernels' parameters, launches them, and reports how they ended."""

import ctypes
import time
from typing import Any, Protocol

import torch

from megatalker_kernels.constants import PHASE_BITS, THREADS, StatusWord, Wait
from megatalker_kernels.errors import KernelStalledError, ToolchainError
from megatalker_kernels.model import PackedModel
from megatalker_kernels.module import Arguments
from megatalker_kernels.params import (
    POINTERS_FIRST,
    POINTERS_LAST,
    POINTERS_MIDDLE,
    WIDE_PLAN,
    WIDE_POINTERS,
    Structures,
    fill_launch,
)
from megatalker_kernels.plan import plan_rows
from megatalker_kernels.schedule import Launch, schedule
from megatalker_kernels.shapes import shared_bytes
from megatalker_kernels.transfer import send
from megatalker_kernels.workspace import Workspace

WAITS = {
    Wait.RESULTS: "for results of other blocks",
    Wait.RING: "for weights, or stored keys and values, to arrive",
}
LAUNCHES_TAGGED = 2 ** (32 - PHASE_BITS)
"""Number of launches after which tags repeat."""
TICKETS = 2**31 - LAUNCHES_TAGGED
"""A multiple of :data:`LAUNCHES_TAGGED`, so that results are forgotten in time when tickets start over, too."""
WIDE_THREADS = THREADS - 32
SOURCES = ("frame.cu", "wide.cu")
"""Sources of the two modules of a kernel."""


class Module(Protocol):
    """A compiled kernel where it runs; see :class:`~megatalker_kernels.module.GpuModule`."""

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
    """Both kernels with their model and workspace, ready to launch from one thread at a time.

    Args:
        model: packed weights; the shape is the one the kernels were compiled for.
        workspace: on the same device.
        module: ``frame.cu``, compiled for this shape, on the same device.
        wide_module: ``wide.cu`` alike.
        stall_timeout_s: how long a wait inside a kernel may take before the launch is abandoned.

    Raises:
        ToolchainError: one was compiled for other structures than this package describes.
    """

    def __init__(
        self,
        model: PackedModel,
        workspace: Workspace,
        module: Module,
        wide_module: Module,
        *,
        stall_timeout_s: float = 0.05,
    ) -> None:
        self._model = model
        self._space = workspace
        self._shape = model.shape
        self._device = model.device
        self._stall_timeout_s = stall_timeout_s
        self._module, self._wide_module = module, wide_module
        self._shared_bytes = shared_bytes(self._shape)
        self._entry = module.entry("megatalker_frame", shared_bytes=self._shared_bytes)
        self._wide_entry = wide_module.entry("megatalker_wide", shared_bytes=self._shared_bytes)
        self.clock_hz = module.clock_hz
        structures = Structures(self._shape)
        self._params: Any = structures.params()
        self._wide_params: Any = structures.wide_params()
        self._fill_buffers(self._params.to, workspace.buffers())
        wide = workspace.wide.buffers()
        self._fill_buffers(self._wide_params.to, workspace.buffers() | wide)
        for name in WIDE_POINTERS:
            setattr(self._wide_params.wide, name, wide[name].data_ptr())
        self._wide_params.wide.room = workspace.wide.streams
        self._arguments, self._wide_arguments = Arguments(self._params), Arguments(self._wide_params)
        self._status = workspace.status.numpy()
        self._plan = torch.empty(0)
        self._ticket = 0
        self._last: Launch | None = None
        self._check_layout(module, "megatalker_layout", self._params)
        self._check_layout(wide_module, "megatalker_wide_layout", self._wide_params)

    def run(self, launch: Launch) -> int:
        """Launch and return at once, with a ticket for :meth:`wait`."""
        self._ticket = self._ticket % TICKETS + 1
        params, space = self._wide_params if launch.wide else self._params, self._space
        params.to.ticket = self._ticket
        params.to.talker_kv, params.to.pages = space.talker_kv.data_ptr(), space.pages  # the workspace may have grown
        if self._ticket % LAUNCHES_TAGGED == 0:
            space.forget_results()
        fill_launch(params.launch, launch)
        self._last = launch
        if launch.wide:
            self._send_plan(launch)
            self._wide_module.start_together(
                self._wide_entry, self._shape.blocks, WIDE_THREADS, self._shared_bytes, self._wide_arguments
            )
        else:
            self._module.start_together(self._entry, self._shape.blocks, THREADS, self._shared_bytes, self._arguments)
        return self._ticket

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        """The codes of the last decode launch, as soon as they exist; the talker may still be at work.

        Raises:
            KernelStalledError: this launch or an earlier one was abandoned. The kernel can be launched again, but the
                streams' state is lost.
        """
        assert self._last is not None
        space = self._space.wide if self._last.wide else self._space
        codes = space.codes.numpy()[: len(self._last.rows)]
        tickets = codes[:, -1]
        deadline = time.perf_counter() + 1.0 + 4 * self._stall_timeout_s
        while not (tickets == ticket).all():
            if self._status[StatusWord.ABORTED] or time.perf_counter() > deadline:
                self.check()
                if (tickets == ticket).all():
                    break
                raise KernelStalledError("the kernel ended without publishing codes", phase=0, block=0)
            time.sleep(0)
        return [tuple(row) for row in codes[:, :-1].tolist()]

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
        params = self._wide_params if launch.wide else self._params
        params.to.profile = ticks.data_ptr()
        self.run(launch)
        params.to.profile = None
        self.check()
        return ticks[:, : phases + 1].cpu()

    def _phase_name(self, number: int) -> str:
        if self._last is None or number < 1:
            return "unknown"
        for index, phase in enumerate(schedule(self._shape, self._last), start=1):
            if index == number:
                return str(phase)
        return "the end"

    def _send_plan(self, launch: Launch) -> None:
        """Send the plan for all rows to the device, in one copy."""
        parts = plan_rows(self._shape, launch)
        wide: Any = self._wide_params.wide
        self._plan = plan = send(
            parts.joined(), self._device
        )  # kept until the next launch, which follows in stream order
        for name, start in zip(WIDE_PLAN, parts.starts(), strict=True):
            setattr(wide, name, plan.data_ptr() + start * plan.element_size())
        wide.chunks, wide.heards = len(parts.chunk), len(parts.source)

    def _fill_buffers(self, to: Any, buffers: dict[str, torch.Tensor]) -> None:
        model, constants = self._model, self._model.constants
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
            **buffers,
        }
        for name in (*POINTERS_FIRST, *POINTERS_MIDDLE, *POINTERS_LAST):
            tensor = values[name]
            setattr(to, name, None if tensor is None else tensor.data_ptr())
        to.sum_tables[:] = [table.data_ptr() for table in model.sum_tables]
        to.input_tables[:] = [table.data_ptr() for table in model.input_tables]
        to.slots, to.spin_ticks = self._space.slots, int(self._stall_timeout_s * self.clock_hz)
        to.eos, to.talker_eps, to.predictor_eps = constants.eos, constants.talker_eps, constants.predictor_eps

    def _check_layout(self, module: Module, entry: str, params: ctypes.Structure) -> None:
        """Ask the compiled code for the size of its structures."""
        size = torch.zeros(1, dtype=torch.int32, device=self._device)
        module.start(module.entry(entry), 1, 1, Arguments(ctypes.c_void_p(size.data_ptr())))
        found, expected = int(size), ctypes.sizeof(params)
        if found != expected:
            raise ToolchainError(
                f"the kernel's parameters have {found} bytes, expected {expected}: csrc and params.py disagree"
            )
