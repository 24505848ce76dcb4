"""Memory that loading leaves behind: pages of mapped files, and what the allocator keeps for later."""

import ctypes
import mmap
import sys
from collections.abc import Iterable

from torch import Tensor


def release_pages(tensors: Iterable[Tensor]) -> None:
    """Let go of the pages of memory-mapped tensors under Linux.

    The tensors stay usable: what is read again comes back from the file. Pages that were written to would lose that.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    for tensor in tensors:
        begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if size > 0:
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def trim_heap() -> None:
    """Give freed memory back to the system where the C library can (glibc)."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
