"""Speed of the engine with this checkpoint, and the memory it takes."""

import resource
import sys
from collections.abc import Iterator

import torch

from megatalker.cli.bench.measure import measure
from megatalker.cli.bench.metrics import metric
from megatalker.cli.verify.card import Check
from megatalker_conformance.cases import conformance_voice
from megatalker_conformance.verify.subject import VerifySubject

ROUNDS = 3
_MAXRSS = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of ``ru_maxrss``."""


def speed(subject: VerifySubject) -> Iterator[Check]:
    """Measure the speed as ``megatalker bench`` does, in the number format of the settings."""
    name, device = subject.talker_backend.name, subject.device
    settings = subject.engine_settings.model_copy(update={"checkpoint": str(subject.checkpoint.folder)})
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    voice, frames = conformance_voice(subject.checkpoint), subject.order.frames
    report = measure(settings, [name], rounds=ROUNDS, frames=frames, progress=lambda _: None, voice=voice)
    for key in report.metrics:
        summary = report.results[name][key]
        found = f"{summary.median:.3g} (p10 {summary.p10:.3g}, p90 {summary.p90:.3g})"
        yield Check("speed", metric(key).label, "info", found, {key: summary.median})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS / 1e9
    yield Check("speed", "memory of the process, at most (GB)", "info", f"{peak:.3g}", {"process_gb": peak})
    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved(device) / 1e9
        yield Check("speed", "memory of the GPU, at most (GB)", "info", f"{peak:.3g}", {"gpu_gb": peak})
