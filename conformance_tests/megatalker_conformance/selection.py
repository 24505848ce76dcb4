"""The backends that one run tests, the checkpoint and the device."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.report import versions
from megatalker.interfaces import CodecBackend, TalkerBackend
from megatalker.plugins import BackendRegistry, probe
from megatalker.plugins.device import DTYPES, dtype_name, resolve_device
from megatalker.settings import Settings
from megatalker.testing.random_checkpoint import TINY, write_checkpoint

SELECTION = pytest.StashKey["Selection"]()
SpecT = TypeVar("SpecT", TalkerBackend, CodecBackend)


@dataclass
class Selection:
    """The options of the command line, resolved."""

    registry: BackendRegistry
    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    settings: Settings
    talkers: list[str]
    codecs: list[str]
    passed_over: list[str]
    """Why backends that ``all`` would have taken are not judged."""
    _scratch: tempfile.TemporaryDirectory[str]

    @classmethod
    def make(
        cls, *, backends: Sequence[str], codecs: Sequence[str], checkpoint: str, device: str, dtype: str
    ) -> "Selection":
        """Open the checkpoint and resolve every name.

        Raises:
            BackendNotFoundError: a name that no installed plug-in provides.
            BackendUnavailableError: it cannot run here, or not in this dtype; with the reason.
            CheckpointError: the checkpoint cannot be opened.
            SettingsError: there is no such device.
        """
        registry = BackendRegistry.installed()
        for name in (name for name in backends if name != "all"):
            registry.talker(name)
        for name in (name for name in codecs if name != "all"):
            registry.codec(name)
        place = resolve_device(device)
        scratch = tempfile.TemporaryDirectory(prefix="megatalker-conformance-")
        try:
            source = write_checkpoint(Path(scratch.name) / "tiny", TINY) if checkpoint == "tiny" else checkpoint
            settings = Settings.read(dtype=dtype)
            selection = cls(registry, Checkpoint.open(source), place, DTYPES[dtype], settings, [], [], [], scratch)
            selection._resolve(backends, codecs)
        except BaseException:
            scratch.cleanup()
            raise
        return selection

    def _resolve(self, backends: Sequence[str], codecs: Sequence[str]) -> None:
        if not (backends or codecs):
            backends, codecs = ["all"], ["all"]
        for name in backends:
            found = (
                self._available("talker", self.registry.talkers)
                if name == "all"
                else [self.registry.choose_talker(name, self.checkpoint, self.device, self.settings)]
            )
            self.talkers += [spec.name for spec in found if spec.name not in self.talkers]
        for name in codecs:
            chosen = (
                self._available("codec", self.registry.codecs)
                if name == "all"
                else [self.registry.choose_codec(name, self.checkpoint, self.device, self.settings)]
            )
            self.codecs += [spec.name for spec in chosen if spec.name not in self.codecs]

    def _available(self, kind: str, specs: Sequence[SpecT]) -> list[SpecT]:
        found = []
        for spec in specs:
            reason = probe(spec, self.checkpoint, self.device, self.settings).reason
            if reason is None:
                found.append(spec)
            else:
                self.passed_over.append(f"{kind} {spec.name}: {reason}")
        return found

    def parameters(self) -> dict[str, list[str]]:
        """Fixture -> the names that tests asking for it run with."""
        return {"talker_name": self.talkers, "codec_name": self.codecs}

    def describe(self) -> list[str]:
        """Lines of the report header."""
        checkpoint = self.checkpoint
        lines = [
            f"checkpoint: {checkpoint.name} ({checkpoint.config.variant}, {checkpoint.fingerprint})",
            f"device: {self.device}, dtype: {dtype_name(self.dtype)}",
            f"talker backends: {', '.join(self.talkers) or 'none'}; codecs: {', '.join(self.codecs) or 'none'}",
        ]
        lines += [f"not available here: {line}" for line in self.passed_over]
        return lines + [f"broken plug-in {plugin.name}: {plugin.reason}" for plugin in self.registry.broken]

    def close(self) -> None:
        """Remove the checkpoint that was made for this run."""
        self._scratch.cleanup()


def version_line() -> str:
    """The versions that results depend on."""
    return ", ".join(f"{package} {version}" for package, version in versions().items())
