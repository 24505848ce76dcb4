"""The form of every result: the command, the environment, and the figures, as JSON and where it helps as a plot."""

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from megatalker.checkpoint import Checkpoint
    from megatalker.engine import Engine

PERCENTS = (50, 95, 99)


def command_line() -> str:
    """The command as it was typed, without the folder of the program."""
    program = Path(sys.argv[0]).name
    known = program.startswith("megatalker") or program.endswith(".py")
    return " ".join([program if known else "megatalker", *sys.argv[1:]])


def environment(device: torch.device | None = None, /, **known: str) -> dict[str, str]:
    """Return what figures depend on: ``known`` facts of the subject, accelerator, processor and versions.

    Args:
        device: where the subject runs; ``None``: the first GPU if there is one.
        **known: facts such as checkpoint and backend.
    """
    cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        **known,
        "accelerator": torch.cuda.get_device_name(device) if cuda else "none",
        "processor": f"{platform.machine()}, {cores} cores, {torch.get_num_threads()} torch threads",
        "python": platform.python_version(),
        **versions(),
    }


def environment_of(checkpoint: "Checkpoint", device: torch.device, dtype: str, codec: str) -> dict[str, str]:
    """The environment of measurements on a checkpoint."""
    name = f"{checkpoint.name} ({checkpoint.fingerprint})"
    return environment(device, checkpoint=name, device=str(device), dtype=dtype, codec=codec)


def environment_of_engine(engine: "Engine") -> dict[str, str]:
    """The environment of measurements on an engine, with its backend."""
    facts = environment_of(engine.checkpoint, engine.device, str(engine.dtype).removeprefix("torch."), engine.codec)
    return {"backend": engine.backend, **facts}


def versions() -> dict[str, str]:
    """Versions of the packages that results depend on; ``not installed`` where a package is missing."""
    return {name: _version(name) for name in ("megatalker", "torch", "transformers", "qwen-tts")}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """p50, p95, p99 and max of durations, in milliseconds; ``None`` if there are none."""
    if not seconds:
        return None
    milliseconds = np.array(seconds) * 1e3
    found = {f"p{percent}": float(np.percentile(milliseconds, percent)) for percent in PERCENTS}
    return found | {"max": float(milliseconds.max())}


def as_text(report: Any) -> str:
    """JSON as files hold it."""
    return json.dumps(report, indent=1) + "\n"


def save(report: "DataclassInstance", folder: Path, stem: str, draw: Callable[[Any], Any]) -> list[Path]:
    """Write ``STEM.json``, and ``STEM.png`` if matplotlib (extra ``bench``) is installed; return what was written.

    Args:
        report: its fields become the JSON.
        folder: where the files go.
        stem: their name.
        draw: makes the figure with the ``pyplot`` that it is given.
    """
    target, plot = folder / f"{stem}.json", folder / f"{stem}.png"
    target.write_text(as_text(asdict(report)), encoding="utf-8")
    try:
        import matplotlib as mpl
    except ImportError:
        return [target]
    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure = draw(plt)
    figure.tight_layout()
    figure.savefig(plot, dpi=110)
    plt.close(figure)
    return [target, plot]
