"""Cache on disk of results of oracles, under a digest of everything they depend on, for all processes and later runs.

A file is written whole or not at all, so processes may share the folder; while one computes, others that want the same
wait for it. A file that is damaged is computed again, and one that nobody read for :data:`UNUSED_DAYS` is removed.
"""

import hashlib
import importlib.metadata
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import load, save
from torch import Tensor

import megatalker.checkpoint
import megatalker.sampling
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.cache import cache_folder

VERSIONED = ("torch", "transformers", "qwen-tts")
KEPT_IN = "conformance"
UNUSED_DAYS = 30
_DIGEST = hashlib.sha256
_SEAL = _DIGEST().digest_size


class OracleClock:
    """Seconds that this process spends on computing results that the cache lacked; shown at the end of a run."""

    _spent_s = 0.0

    @classmethod
    def add(cls, seconds: float) -> None:
        cls._spent_s += seconds

    @classmethod
    def take(cls) -> float:
        """Seconds since the last call."""
        spent, cls._spent_s = cls._spent_s, 0.0
        return spent


class Kept:
    """Results that depend on these facts and on what :meth:`get` is told.

    Args:
        facts: anything with a ``repr`` that says what it is.
        folder: where files lie; ``None``: :data:`KEPT_IN` in the user's cache folder.
    """

    def __init__(self, *facts: object, folder: Path | None = None) -> None:
        self._facts = facts
        self._folder = cache_folder(KEPT_IN) if folder is None else folder
        self._pruned = False

    @classmethod
    def open(cls, checkpoint: Checkpoint, device: torch.device, *code: Path, folder: Path | None = None) -> "Kept":
        """Return the cache for a checkpoint and a device; it depends on the installed packages, this machine and
        ``code``.

        Args:
            checkpoint: every byte of its weights counts, its name does not.
            device: where the oracle works.
            code: folders whose Python files take part, besides those that read checkpoints and sample.
            folder: as for :class:`Kept`.
        """
        versions = [f"{package} {importlib.metadata.version(package)}" for package in VERSIONED]
        chip = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
        own = [Path(package.__path__[0]) for package in (megatalker.checkpoint, megatalker.sampling)]
        sources = [path for place in (*own, *code) for path in sorted(place.glob("*.py"))]
        weights = [path for path in sorted(checkpoint.folder.rglob("*")) if path.suffix in (".json", ".safetensors")]
        return cls(*versions, device.type, chip, _digest_of(sources), _digest_of(weights), folder=folder)

    def get(
        self,
        inputs: object,
        make: Callable[[], Mapping[str, Tensor]],
        enough: Callable[[dict[str, Tensor]], bool] = lambda _: True,
    ) -> dict[str, Tensor]:
        """Return the result of ``make`` for ``inputs``, from the cache or computed now.

        Args:
            inputs: anything with a ``repr`` that says what it is; :func:`content` for tensors.
            make: computes tensors on the CPU, by name.
            enough: whether what is kept suffices; if not, ``make`` replaces it.
        """
        path = self._folder / _DIGEST(repr((self._facts, inputs)).encode()).hexdigest()
        found = _read(path)
        if found is not None and enough(found):
            return found
        with self._alone_with(path):
            found = _read(path)
            if found is None or not enough(found):
                began = time.perf_counter()
                found = dict(make())
                OracleClock.add(time.perf_counter() - began)
                self._write(path, found)
            return found

    @contextmanager
    def _alone_with(self, path: Path) -> Iterator[None]:
        """Held by one process at a time for each of 256 groups of files; by all where there is nowhere to lock."""
        locks = self._folder.with_name(f"{self._folder.name}-locks")
        lock = FileLock(locks / path.name[:2])
        with suppress(OSError):
            locks.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._prune()
            handle, scratch = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(_DIGEST(data).digest() + data)
            Path(scratch).replace(path)
        except OSError as error:
            warnings.warn(f"what the oracle computed cannot be kept in {self._folder}: {error}", stacklevel=2)

    def _prune(self) -> None:
        if self._pruned:
            return
        self._pruned = True
        oldest = time.time() - UNUSED_DAYS * 86_400
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another process was faster
                if path.stat().st_mtime < oldest:
                    path.unlink()


def content(*tensors: Tensor) -> str:
    """A digest of types, shapes and values."""
    digest = _DIGEST()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    return load(data[_SEAL:]) if data[:_SEAL] == _DIGEST(data[_SEAL:]).digest() else None


def _digest_of(paths: Iterable[Path]) -> str:
    parts = [f"{path.name} {_digest_of_file(path, path.stat().st_size, path.stat().st_mtime_ns)}" for path in paths]
    return _DIGEST("\n".join(parts).encode()).hexdigest()


@cache
def _digest_of_file(path: Path, _size: int, _modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
