"""The kernel for long and under faults, on a GPU: ``megatalker bench endurance --help``.

Many frames of 8 streams, memory before and after; launches in which a block stalls on purpose, each followed by one
that must say what it said before; and an utterance whose launch stalls half-way, which the next backend must finish.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from megatalker import Engine, SamplingParams, Settings
from megatalker_kernels.diff import Bench
from megatalker_kernels.errors import KernelStalledError
from megatalker_kernels.launching import SOURCES, Kernel
from megatalker_kernels.module import GpuModule, capability, processors
from megatalker_kernels.schedule import Launch
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.trial import CODE_GROUPS, MODELS, random_model

CONTEXT = 128
STALLED_FRAME = 20


def bench_of(model: str, device: torch.device) -> Bench:
    """Kernel and workspaces of a random model, 8 streams."""
    talker, predictor = MODELS[model]
    shape = KernelShape.fit(
        talker,
        predictor,
        code_groups=CODE_GROUPS,
        max_positions=4096,
        processors=processors(device),
        capability=capability(device),
    )
    modules = [GpuModule.compiled(shape, device, source=source) for source in SOURCES]
    return Bench(random_model(shape, device), modules, (CONTEXT,) * 8, 0.05)


def long_run(bench: Bench, frames: int) -> dict[str, Any]:
    """Frames of 8 streams one after another, all checked for having come."""
    before, _ = torch.cuda.mem_get_info()
    began, slowest = time.perf_counter(), 0.0
    for frame in range(frames):
        start = time.perf_counter()
        bench.kernel.wait(bench.kernel.run(Launch("decode", bench.streams.rows(range(8), frame))))
        slowest = max(slowest, time.perf_counter() - start)
    bench.kernel.check()
    bench.ours.check_guards()
    after, _ = torch.cuda.mem_get_info()
    return {
        "frames": frames,
        "streams": 8,
        "mean_ms": (time.perf_counter() - began) / frames * 1e3,
        "slowest_ms": slowest * 1e3,
        "memory_growth_bytes": before - after,
    }


def aborts(bench: Bench, cycles: int) -> dict[str, Any]:
    """Stall, be told, go on: the next launch from the same state must choose the same codes."""
    launch = Launch("decode", bench.streams.rows(range(8), 0))
    bench.before.copy_from(bench.ours)
    expected = bench.kernel.wait(bench.kernel.run(launch))
    bench.kernel.check()
    detected, wrong = [], 0
    for cycle in range(cycles):
        bench.ours.copy_from(bench.before)
        began = time.perf_counter()
        try:
            stalled = replace(launch, stall_phase=1 + cycle * 4, stall_block=cycle % 64)
            bench.kernel.wait(bench.kernel.run(stalled))
            bench.kernel.check()
        except KernelStalledError:
            detected.append((time.perf_counter() - began) * 1e3)
        bench.ours.copy_from(bench.before)
        wrong += bench.kernel.wait(bench.kernel.run(launch)) != expected
        bench.kernel.check()
    return {
        "cycles": cycles,
        "detected": len(detected),
        "detected_ms_median": statistics.median(detected),
        "detected_ms_slowest": max(detected),
        "recovered_wrongly": wrong,
    }


def failover(checkpoint: str) -> dict[str, Any]:
    """One utterance whose kernel stalls at a frame, finished by the reference backend."""
    settings = Settings.read(checkpoint=checkpoint, device="cuda", backend="megakernel", fallbacks=("reference",))
    run, launches = Kernel.run, 0

    def stalling(self: Kernel, launch: Launch) -> int:
        nonlocal launches
        launches += launch.mode == "decode"
        return run(self, replace(launch, stall_phase=9, stall_block=0) if launches == STALLED_FRAME else launch)

    with Engine.open(settings) as engine:
        engine.warmup()
        Kernel.run = stalling  # type: ignore[method-assign]
        try:
            stream = engine.speak("Hello there.", seed=1, sampling=SamplingParams(min_new_tokens=60), max_frames=60)
            frames = sum(chunk.frames for chunk in stream)
        finally:
            Kernel.run = run  # type: ignore[method-assign]
        return {"frames": frames, "backend": stream.backend, "switches": [str(switch) for switch in stream.switches]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="0.6B")
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--checkpoint", default="demo", help="for the utterance that changes its backend")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = bench_of(options.model, torch.device("cuda", 0))
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "model": options.model}
    parts = {
        "long_run": lambda: long_run(bench, options.frames),
        "aborts": lambda: aborts(bench, options.cycles),
        "failover": lambda: failover(options.checkpoint),
    }
    for name, part in parts.items():
        report[name] = part()
        print(name, json.dumps(report[name], indent=1), flush=True)  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
