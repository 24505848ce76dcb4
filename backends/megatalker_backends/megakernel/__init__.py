"""The megakernel backend: a frame in one launch. Host side; the kernel is in ``megatalker_kernels``."""
