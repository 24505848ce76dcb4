"""Machines that run launches: the kernel on its GPU, or the executable specification anywhere."""

from typing import Protocol

import torch

from megatalker_backends.megakernel.settings import MegakernelSettings
from megatalker_kernels.launching import SOURCES, Kernel
from megatalker_kernels.model import PackedModel
from megatalker_kernels.module import GpuModule
from megatalker_kernels.plan import remember_plans
from megatalker_kernels.schedule import Launch
from megatalker_kernels.spec.frame import Specification
from megatalker_kernels.workspace import Workspace


class Machine(Protocol):
    """Runs launches one after another on one model and workspace. Every method raises ``KernelError``."""

    def run(self, launch: Launch) -> int:
        """Begin a launch; the ticket is for :meth:`wait`."""

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        """The codes of the last decode launch, as soon as they exist."""

    def check(self) -> None:
        """Wait for the end of all launches."""


def make_machine(model: PackedModel, space: Workspace, settings: MegakernelSettings) -> Machine:
    """Load the kernel, compiling it the first time, or prepare the specification.

    Raises:
        ToolchainError: the kernel cannot be compiled or loaded here.
    """
    return Interpreter(model, space) if settings.interpret else Gpu(model, space, settings)


class Interpreter:
    """The specification; each launch is done when :meth:`run` returns."""

    def __init__(self, model: PackedModel, space: Workspace) -> None:
        self._specification = Specification(model, space)
        self._space = space
        self._codes = space.codes[:0]

    def run(self, launch: Launch) -> int:
        self._specification.run(launch)
        self._codes = (self._space.wide if launch.wide else self._space).codes[: len(launch.rows)]
        return 0

    def wait(self, ticket: int) -> list[tuple[int, ...]]:  # noqa: ARG002 - nothing is ever pending
        return [tuple(row) for row in self._codes[:, :-1].tolist()]

    def check(self) -> None:
        pass


class Gpu:
    """The kernels. The CUDA driver works on the calling thread's device, so each call makes it the right one."""

    def __init__(self, model: PackedModel, space: Workspace, settings: MegakernelSettings) -> None:
        self._device = model.device
        with torch.cuda.device(self._device):
            modules = [GpuModule.compiled(model.shape, self._device, source=source) for source in SOURCES]
            self._kernel = Kernel(model, space, *modules, stall_timeout_s=settings.stall_timeout_s)
        remember_plans(model.shape)

    def run(self, launch: Launch) -> int:
        with torch.cuda.device(self._device):
            return self._kernel.run(launch)

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        with torch.cuda.device(self._device):
            return self._kernel.wait(ticket)

    def check(self) -> None:
        with torch.cuda.device(self._device):
            self._kernel.check()
