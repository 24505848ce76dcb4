"""The megakernel for many frames and under faults, on a GPU: ``megatalker bench endurance --help``.

Many frames of 8 streams and of 32, memory before and after; launches in which a block stalls on purpose, each followed
by one that must say what it said before; and utterances whose launch stalls half-way, which the next backend must
finish. Eight streams take the megakernel, 32 the wide kernel.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from megatalker import Engine, SamplingParams, Settings, SpeechStream
from megatalker_benchmarks.report import add_json_option, keep, whole
from megatalker_kernels.constants import ROWS
from megatalker_kernels.diff import KernelDiff
from megatalker_kernels.errors import KernelStalledError
from megatalker_kernels.launching import SOURCES, Kernel
from megatalker_kernels.module import GpuModule, capability, processors
from megatalker_kernels.schedule import Launch
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.trial import CODE_GROUPS, MODELS, random_model

CONTEXT = 128
FRAMES = 60
STALLED_FRAME = 20
STREAMS = (8, 32)


def bench_of(model: str, streams: int, device: torch.device) -> KernelDiff:
    """Return kernels and workspaces of a random model."""
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
    return KernelDiff(random_model(shape, device), modules, (CONTEXT,) * streams, 0.05)


def launch_of(bench: KernelDiff, frame: int) -> Launch:
    """Return the launch of one frame of all streams."""
    streams = len(bench.streams.positions)
    return Launch("decode", bench.streams.rows(range(streams), frame), wide=streams > ROWS)


def long_run(bench: KernelDiff, frames: int) -> dict[str, Any]:
    """Make frames one after another, and check that each came."""
    before, _ = torch.cuda.mem_get_info()
    began, slowest = time.perf_counter(), 0.0
    for frame in range(frames):
        start = time.perf_counter()
        bench.kernel.wait(bench.kernel.run(launch_of(bench, frame)))
        slowest = max(slowest, time.perf_counter() - start)
    bench.kernel.check()
    bench.ours.check_guards()
    after, _ = torch.cuda.mem_get_info()
    return {
        "frames": frames,
        "mean_ms": (time.perf_counter() - began) / frames * 1e3,
        "slowest_ms": slowest * 1e3,
        "memory_growth_bytes": before - after,
    }


def aborts(bench: KernelDiff, cycles: int) -> dict[str, Any]:
    """Stall launches; the next launch from the same state must choose the same codes."""
    launch = launch_of(bench, 0)
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


def failover(checkpoint: str, streams: int) -> dict[str, Any]:
    """Stall the kernel amid utterances; the reference backend must finish them with the codes of a run without."""
    settings = Settings.read(
        checkpoint=checkpoint,
        device="cuda",
        backend="megakernel",
        fallbacks=("reference",),
        max_streams=streams,
    )
    run, launches = Kernel.run, 0

    def stalling(self: Kernel, launch: Launch) -> int:
        nonlocal launches
        launches += launch.mode == "decode" and len(launch.rows) == streams
        return run(self, replace(launch, stall_phase=9, stall_block=0) if launches == STALLED_FRAME else launch)

    def speak(engine: Engine) -> list[SpeechStream]:
        sampling = SamplingParams(min_new_tokens=FRAMES)
        return [
            engine.speak("Hello there.", seed=seed, sampling=sampling, max_frames=FRAMES, return_codes=True)
            for seed in range(streams)
        ]

    def heard(begun: list[SpeechStream]) -> list[list[list[int]]]:
        return [[row for chunk in stream for row in chunk.codes.tolist()] for stream in begun]

    with Engine.open(settings) as engine:
        engine.warmup()
        expected = heard(speak(engine))
        Kernel.run = stalling  # type: ignore[method-assign]
        try:
            begun = speak(engine)
            codes = heard(begun)
        finally:
            Kernel.run = run  # type: ignore[method-assign]
        changed = [stream.switches for stream in begun if stream.switches]
        return {
            "utterances": streams,
            "finished": sum(len(each) == FRAMES for each in codes),
            "changed_backend": len(changed),
            "equal_until_the_stall": sum(
                a[: STALLED_FRAME - 2] == b[: STALLED_FRAME - 2] for a, b in zip(codes, expected, strict=True)
            ),
            "first_switch": str(changed[0][0]) if changed else None,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="0.6B")
    parser.add_argument("--frames", type=whole(), default=10_000)
    parser.add_argument("--cycles", type=whole(), default=100)
    parser.add_argument("--checkpoint", default="demo", help="for the utterance that changes its backend")
    add_json_option(parser)
    options = parser.parse_args()
    report: dict[str, Any] = {"model": options.model}
    for streams in STREAMS:
        bench = bench_of(options.model, streams, torch.device("cuda", 0))
        parts = {
            "long_run": partial(long_run, bench, options.frames),
            "aborts": partial(aborts, bench, options.cycles),
            "failover": partial(failover, options.checkpoint, streams),
        }
        for name, part in parts.items():
            report[f"{name}_{streams}"] = part()
            print(name, streams, json.dumps(report[f"{name}_{streams}"], indent=1), flush=True)  # noqa: T201
    if options.json is not None:
        keep(report, options.json)


if __name__ == "__main__":
    main()
