"""Backends under test on special checkpoints, each made for one question."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendUnavailableError, UnsupportedError
from megatalker.interfaces import CodecBackend, TalkerBackend
from megatalker.plugins import BackendRegistry, probe
from megatalker.plugins.checked import CheckedTalker, load_talker
from megatalker.settings import Settings
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY, TINY_1B7, CheckpointRecipe, StackSizes
from megatalker.testing.special import Change, OpenModel, extreme, unchanged, uneven
from megatalker_conformance.loading import load_context
from megatalker_conformance.oracle import Oracle

LoadedT = TypeVar("LoadedT")

OPEN, EXTREME, NARROW, GROUPED = "open", "extreme", "narrow predictor", "grouped heads"
UNEVEN = "uneven columns"
FEW_CODES, MANY_CODES = "3 code groups", "20 code groups"
END_OF_POSITIONS = 600
"""Positions of the checkpoint with few of them: a number that no page or power of two divides."""
_GROUPED = StackSizes(hidden=128, intermediate=96, layers=2, heads=6, kv_heads=2, head_dim=16)
_WIDE = StackSizes(hidden=256, intermediate=256, layers=3, heads=4, kv_heads=2, head_dim=32)
RECIPES: dict[str, tuple[CheckpointRecipe, Change]] = {
    OPEN: (TINY, OpenModel.change),
    EXTREME: (replace(TINY, seed=1), extreme),
    NARROW: (replace(TINY_1B7, variant="voice_design", seed=2), unchanged),
    GROUPED: (
        replace(
            TINY,
            talker=_GROUPED,
            predictor=replace(_GROUPED, intermediate=160, layers=3, heads=4, kv_heads=1, head_dim=32),
            codebook_size=256,
            variant="base",
            dtype="bfloat16",
            max_positions=END_OF_POSITIONS,
            seed=3,
        ),
        unchanged,
    ),
    FEW_CODES: (replace(TINY, num_code_groups=3, seed=4), unchanged),
    MANY_CODES: (
        replace(TINY, num_code_groups=20, codec=replace(TINY.codec, encoder_quantizers=20), seed=5),
        unchanged,
    ),
    UNEVEN: (replace(TINY, talker=_WIDE, predictor=replace(_WIDE, layers=2), seed=6), uneven),
}

TINY_SIZES = (OPEN, EXTREME)
"""Warmed up, as what a backend compiles for them can be used again. Compiling for the others takes minutes; a backend
that is not warm must be right as well.
"""


class SpecialCheckpoints:
    """Writes each special checkpoint when it is first asked for, and keeps its oracle.

    Args:
        folder: where to write.
        registry: where ``reference`` is registered.
        device: of the oracles.
    """

    def __init__(self, folder: Path, registry: BackendRegistry, device: torch.device) -> None:
        self._folder, self._registry, self._device = folder, registry, device
        self._checkpoints: dict[str, Checkpoint] = {}
        self._oracles: dict[str, Oracle] = {}

    def checkpoint(self, name: str) -> Checkpoint:
        """One of :data:`RECIPES`."""
        if name not in self._checkpoints:
            folder = self._folder / name.replace(" ", "_")
            self._checkpoints[name] = Checkpoint.open(write_checkpoint(folder, *RECIPES[name]))
        return self._checkpoints[name]

    def oracle(self, name: str) -> Oracle:
        """Its oracle."""
        if name not in self._oracles:
            self._oracles[name] = Oracle(self._registry, self.checkpoint(name), self._device)
        return self._oracles[name]

    def close(self) -> None:
        """Free the oracles."""
        for oracle in self._oracles.values():
            oracle.close()


def load_or_skip(
    spec: TalkerBackend | CodecBackend,
    checkpoint: Checkpoint,
    device: torch.device,
    settings: Settings,
    load: Callable[[], LoadedT],
) -> LoadedT:
    """Return the result of ``load``; skip the test where the backend says that it cannot run this."""
    reason = probe(spec, checkpoint, device, settings).reason
    if reason is None:
        try:
            return load()
        except (BackendUnavailableError, UnsupportedError) as error:
            reason = str(error)
    pytest.skip(f"the backend cannot run the checkpoint '{checkpoint.name}': {reason}")


class Loader:
    """Loads the backend under test, as the fixture ``talker`` does, on special checkpoints; on each of them once.

    Args:
        spec: the backend under test.
        checkpoints: what to load.
        device: as everywhere in the run, and ``dtype``.
        dtype: see ``device``.
        settings: of the run.
    """

    def __init__(
        self,
        spec: TalkerBackend,
        checkpoints: SpecialCheckpoints,
        device: torch.device,
        dtype: torch.dtype,
        settings: Settings,
    ) -> None:
        self._spec, self._checkpoints, self._settings = spec, checkpoints, settings
        self._device, self._dtype = device, dtype
        self._loaded: dict[str, CheckedTalker] = {}

    def __call__(self, name: str) -> CheckedTalker:
        """One of :data:`RECIPES`; the test is skipped where the backend says that it cannot run it."""
        if name not in self._loaded:
            checkpoint = self._checkpoints.checkpoint(name)

            def load() -> CheckedTalker:
                decoder = load_talker(self._spec, checkpoint, load_context(self._spec, self._device, self._dtype))
                if name in TINY_SIZES:
                    decoder.warmup()
                return decoder

            self._loaded[name] = load_or_skip(self._spec, checkpoint, self._device, self._settings, load)
        return self._loaded[name]

    def close(self) -> None:
        """Free everything that is loaded."""
        for decoder in self._loaded.values():
            decoder.close()
