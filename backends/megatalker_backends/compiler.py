"""Requirements of ``torch.compile``, and one error for everything that a machine lacks of them."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from megatalker.checkpoint.cache import cache_folder

ADVICE = (
    "it needs a C++ compiler (g++, or the one that CXX names) and a cache folder to write to (TORCHINDUCTOR_CACHE_DIR)"
)


class CompilerError(Exception):
    """``torch.compile`` cannot work here; the message says why."""


def missing_compiler(device: torch.device) -> str | None:
    """Say what ``torch.compile`` for ``device`` lacks on this machine; ``None`` if nothing is known to be missing."""
    if device.type == "cpu":
        name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        return None if shutil.which(name) else f"there is no C++ compiler {name!r}"
    if device.type == "mps":
        return "torch.compile has not been tried on Apple's GPUs"
    from torch.utils._triton import has_triton  # there is no public way to ask

    return None if has_triton() else "triton does not work here"


def keep_compiled_code() -> None:
    """Have torch keep what it compiles under the user's cache folder, unless ``TORCHINDUCTOR_CACHE_DIR`` says where.

    Its own choice is a folder for temporary files, which a reboot or a new container empties. It knows no other way to
    be told than this variable, and the process that compiles ahead is told by it, too.
    """
    folder = cache_folder("inductor")
    with suppress(OSError):  # where nothing can be kept there, torch's own choice stands
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def keeps_compiled_code() -> bool:
    """Whether torch finds what another process has compiled."""
    from torch._inductor import config  # imports much

    return bool(config.fx_graph_cache and not config.force_disable_caches)


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Around ``torch.compile`` and the first run of what it made: a failure to compile becomes ``CompilerError``, and
    what is compiled is kept (:func:`keep_compiled_code`).
    """
    keep_compiled_code()
    try:
        if folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
            Path(folder).mkdir(parents=True, exist_ok=True)  # torch 2.15 does, halfway through importing its compiler
        yield
    except Exception as error:
        if not isinstance(error, OSError):
            from torch._dynamo.exc import TorchDynamoException  # imports much, which torch.compile has done by now

            if not isinstance(error, TorchDynamoException):
                raise
        reason = str(error).strip().partition("\n")[0]
        raise CompilerError(f"torch.compile failed ({type(error).__name__}: {reason}); {ADVICE}") from error
