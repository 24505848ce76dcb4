"""Errors of this package; every message names the cause and the way out."""


class KernelError(Exception):
    """Base class."""


class ShapeError(KernelError, ValueError):
    """A model's sizes do not meet the kernel's rules, or tensors do not have the announced sizes."""


class ToolchainError(KernelError):
    """The kernel cannot be compiled or loaded here: missing packages, an unknown architecture, a compiler error."""


class KernelStalledError(KernelError):
    """A wait inside the kernel took too long; the launch was abandoned and its results are not to be used.

    Attributes:
        phase: number of the phase that did not complete, counted from 1.
        block: the block that is furthest behind.
    """

    def __init__(self, message: str, *, phase: int, block: int) -> None:
        super().__init__(message)
        self.phase = phase
        self.block = block


class GuardError(KernelError):
    """Something wrote outside a buffer."""
