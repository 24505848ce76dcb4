"""A batch size that another process compiles, at the lowest priority, while the decoder works without it: torch's cache
then has what would take long. A compiler in the same interpreter would stop speech again and again.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from megatalker.checkpoint import Checkpoint
from megatalker_backends.compiled.compilation import compile_piecewise, compile_units
from megatalker_backends.compiled.model import Model, Units
from megatalker_backends.compiler import CompilerError, compiler_errors

logger = logging.getLogger(__name__)

LOWEST_PRIORITY = 19


class LaterUnits:
    """The units for one batch size, on a CPU.

    Args:
        model: to compile for. The process reads its checkpoint again, so its weights take memory twice meanwhile.
        folder: of the checkpoint.
        size: of the batch.
    """

    def __init__(self, model: Model, folder: Path, size: int) -> None:
        self.what = f"frames of {size} streams"
        self.size, self.model = size, model
        self._pieces: Iterator[Units] | None = None
        self._loaded: Units | None = None
        task = {
            "folder": str(folder),
            "max_streams": model.scratch_row,
            "max_positions": model.cache_positions,
            "dtype": str(model.dtype).removeprefix("torch."),
            "size": size,
        }
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        logger.info("compiled: warm for one stream; %s are compiled by process %d", self.what, self._process.pid)

    def load(self) -> Units | None:
        """Load one unit more, if they are compiled; all units once there is none left.

        Raises:
            CompilerError: they cannot be compiled.
        """
        if self._pieces is None:
            if not self._compiled():
                return None
            self._pieces = compile_piecewise(self.model, self.size)
        with compiler_errors():
            units = next(self._pieces, None)
        if units is not None:
            self._loaded = units
            return None
        logger.info("compiled: warm for %s", self.what)
        return self._loaded

    def stop(self) -> None:
        """End the process, wherever it is."""
        self._process.kill()
        self._process.wait()
        self._said.close()

    def _compiled(self) -> bool:
        status = self._process.poll()
        if status:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip() or "nothing"
            raise CompilerError(f"the process that compiled ended with status {status} and said: {said[-1000:]}")
        return status == 0


@torch.inference_mode()
def main(task: str) -> None:
    """Compile the step that ``task`` describes, as JSON; run in a process of its own."""
    asked = json.loads(task)
    os.nice(LOWEST_PRIORITY)
    torch.set_num_threads(1)
    with torch.inference_mode(mode=False):
        model = Model(
            Checkpoint.open(Path(asked["folder"])),
            max_streams=asked["max_streams"],
            max_positions=asked["max_positions"],
            device=torch.device("cpu"),
            dtype=getattr(torch, asked["dtype"]),
        )
    try:
        with compiler_errors():
            compile_units(model, [asked["size"]])
    except CompilerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1])
