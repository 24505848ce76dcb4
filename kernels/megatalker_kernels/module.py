"""Code on the GPU: loading and starting it through the CUDA driver."""

import ctypes
from importlib import import_module
from typing import Any, Self

import torch

from megatalker_kernels.errors import ToolchainError
from megatalker_kernels.nvrtc import Macros, architecture, compile_kernel


class GpuModule:
    """Compiled code loaded on one device, and its entry points.

    Args:
        code: a cubin.
        device: a CUDA device.

    Raises:
        ToolchainError: the driver refuses; the message holds its reason.
    """

    def __init__(self, code: bytes, device: torch.device) -> None:
        self._driver: Any = import_module("cuda.bindings.driver")
        core: Any = import_module("cuda.core")
        self.device = device
        self.synchronize()  # torch's context exists from here on
        gpu = core.Device(torch.cuda.current_device() if device.index is None else device.index)
        gpu.set_current()
        self.clock_hz: int = gpu.properties.clock_rate * 1000
        self._object = core.ObjectCode.from_cubin(code)

    @classmethod
    def compiled(cls, constants: Macros, device: torch.device, *, source: str = "frame.cu") -> Self:
        """Compiled for a device and loaded there.

        Args:
            constants: sizes, which become macros.
            device: a CUDA device.
            source: see :func:`~megatalker_kernels.nvrtc.compile_kernel`.

        Raises:
            ToolchainError: the code cannot be compiled or loaded.
        """
        return cls(compile_kernel(constants, architecture(capability(device)), source=source).code, device)

    def entry(self, name: str, *, shared_bytes: int = 0) -> Any:
        """A kernel by name, allowed to use this much dynamic shared memory."""
        function = self._call("cuKernelGetFunction", self._object.get_kernel(name).handle)
        if shared_bytes:
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", function, attribute, shared_bytes)
        return function

    def start(self, function: Any, blocks: int, threads: int, arguments: "Arguments") -> None:
        """Launch on torch's current stream."""
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, self._stream(), arguments.address, 0)

    def start_in_chain(
        self, function: Any, blocks: int, threads: int, arguments: "Arguments", *, shared_bytes: int = 0
    ) -> None:
        """Launch on torch's current stream a kernel that, from ``sm_90`` on, itself waits for the one before it."""
        driver = self._driver
        attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, driver.CUstream(self._stream())
        if capability(self.device) >= 90:
            config.attrs, config.numAttrs = [attribute], 1
        self._call("cuLaunchKernelEx", config, function, arguments.address, 0)

    def start_together(
        self, function: Any, blocks: int, threads: int, shared_bytes: int, arguments: "Arguments"
    ) -> None:
        """Launch cooperatively on torch's current stream: all blocks run at once, or the launch is refused."""
        grid = (blocks, 1, 1, threads, 1, 1)
        self._call("cuLaunchCooperativeKernel", function, *grid, shared_bytes, self._stream(), arguments.address)

    def synchronize(self) -> None:
        """Wait for all work on torch's current stream."""
        torch.cuda.current_stream(self.device).synchronize()

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *results = getattr(self._driver, name)(*arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise ToolchainError(f"{name} failed: {error.name}")
        return results[0] if results else None


class Arguments:
    """Kernel arguments: ctypes values, whose contents at launch time are passed."""

    def __init__(self, *values: Any) -> None:
        self._values = values
        self._pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.address = ctypes.addressof(self._pointers)


def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def capability(device: torch.device) -> int:
    """Compute capability of a CUDA device, such as 90."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.major * 10 + properties.minor)
