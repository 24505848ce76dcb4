"""The utterances of the backend call that an engine process is in, in a file that outlives it."""

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from megatalker.engine.utterance import Utterance
from megatalker.serving.processes.outlet import Outlet

MOST = 4096
"""Utterances of one call, as many as ``max_streams`` may be."""


class LastCall:
    """Written by the engine's worker before and after each call. A crash of the process leaves the file as it is."""

    def __init__(self, path: str) -> None:
        file_ = Path(path)
        file_.write_bytes(bytes(8 * (1 + MOST)))
        with file_.open("r+b") as file:
            self._memory = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)

    def __call__(self, served: Sequence[Utterance]) -> None:
        """A call for these begins; none: it has ended."""
        memory = self._memory
        memory[0] = 0
        if served:
            numbers = [one.chunks.number for one in served[:MOST] if isinstance(one.chunks, Outlet)]
            memory[1 : 1 + len(numbers)] = numbers
            memory[0] = len(numbers)


def last_call(path: str) -> frozenset[int]:
    """Return the utterances of the call in which the process of this file died; none where it was in none."""
    try:
        memory = np.fromfile(path, np.int64)
    except OSError:
        return frozenset()
    return frozenset(memory[1 : 1 + int(memory[0])].tolist()) if len(memory) else frozenset()
