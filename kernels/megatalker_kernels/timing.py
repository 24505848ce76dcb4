"""Frame times of the kernel, and the time that only reading the same bytes takes on the same device."""

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from megatalker_kernels.constants import PAGE, ROWS, STORED, WEIGHT
from megatalker_kernels.launching import Kernel
from megatalker_kernels.model import PackedModel
from megatalker_kernels.module import Arguments, GpuModule
from megatalker_kernels.packing import stream
from megatalker_kernels.schedule import Launch, PackedRows, schedule
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.trial import TrialStreams, fill_streams, pages_for, samplings
from megatalker_kernels.workspace import Workspace

CONTEXTS = (128, 1024)
BATCHES = (1, 2, 4, 8)
WARM_UP = 20
WIDE_CONTEXTS = (128, 512)
PROFILED_WIDTHS = (64, 128, 256)
WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PROMPTS = ((1, 8), (1, 24), (8, 32), (32, 32), (20, 100))
"""Prompts in one launch, and the rows of each."""


def frame_bytes(shape: KernelShape) -> dict[str, int]:
    """Bytes of weights that a frame must read: all once, the predictor's layers for each code but one."""
    once = again = 0
    for matrix in stream(shape):
        size = WEIGHT.itemsize * matrix.rows * matrix.columns
        if matrix.name.startswith("predictor.") and ".head." not in matrix.name:
            again += size
        else:
            once += size
    return {"once": once, "again": again, "total": once + (shape.code_groups - 1) * again}


def time_frames(
    model: PackedModel, modules: Sequence[GpuModule], *, frames: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Median times in milliseconds for each context and batch, prompt passes, and the floor."""
    result: dict[str, Any] = {"bytes": frame_bytes(model.shape), "frames": frames, "floor_ms": time_reading(model)}
    say(f"floor: {result['bytes']['total'] / 1e9:.3f} GB in {result['floor_ms']:.3f} ms")
    result["decode"] = []
    for context in CONTEXTS:
        positions = (context,) * ROWS
        space = Workspace(model.shape, ROWS, pages_for(positions), model.device)
        streams = fill_streams(space, positions, kinds=samplings()[:1])
        kernel = Kernel(model, space, *modules)
        for batch in BATCHES:
            entry = {"context": context, "batch": batch} | _time_decode(kernel, streams, batch, frames)
            result["decode"].append(entry)
            say(f"decode: {entry}")
        result[f"profile_{context}"] = profile_frame(kernel, model.shape, streams, 1, 10)
        _say_profile(result[f"profile_{context}"], say)
    result["phases"] = sum(1 for _ in schedule(model.shape, Launch("decode", streams.rows(range(1), 0))))
    del space, kernel
    result["wide"] = list(_time_wide(model, modules, frames // 8, say))
    return result


def _time_wide(
    model: PackedModel, modules: Sequence[GpuModule], frames: int, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Frames of many streams, as many as the memory holds, and prompts."""
    page_numbers = 2 * model.shape.talker.layers * model.shape.talker.kv_heads * PAGE * model.shape.talker.head_dim
    free = torch.cuda.mem_get_info(model.device)[0]
    for context in WIDE_CONTEXTS:
        widths = [
            width for width in WIDTHS if width * (context // PAGE + 1) * page_numbers * STORED.itemsize < free // 2
        ]
        positions = (context,) * widths[-1]
        space = Workspace(model.shape, len(positions), pages_for(positions), model.device)
        streams = fill_streams(space, positions, kinds=samplings()[:1])
        kernel = Kernel(model, space, *modules)
        for width in widths:
            launches = [Launch("decode", streams.rows(range(width), frame), wide=True) for frame in range(frames)]
            entry: dict[str, Any] = {"context": context, "streams": width}
            entry |= _time_launches(kernel, launches)
            say(f"wide: {entry}")
            if context == WIDE_CONTEXTS[-1] and width in PROFILED_WIDTHS:
                entry["profile"] = profile_frame(kernel, model.shape, streams, width, 5, wide=True)
                _say_profile(entry["profile"], say)
            yield entry
        if context == WIDE_CONTEXTS[0]:
            for prompts, rows in PROMPTS:
                packed = PackedRows([(slot, range(rows), True) for slot in range(prompts)])
                launches = [Launch("prefill", packed, wide=True)] * frames
                entry = {"prompts": prompts, "rows": rows} | _time_launches(kernel, launches)
                say(f"prompts: {entry}")
                yield entry


def _time_decode(kernel: Kernel, streams: TrialStreams, batch: int, frames: int) -> dict[str, float]:
    device_ms, codes_ms, wall_ms = [], [], []
    for frame in range(WARM_UP + frames):
        launch = Launch("decode", streams.rows(range(batch), frame))
        start, end = _event(), _event()
        began = time.perf_counter()
        start.record()
        ticket = kernel.run(launch)
        end.record()
        kernel.wait(ticket)
        seen = time.perf_counter()
        kernel.check()
        done = time.perf_counter()
        if frame >= WARM_UP:
            device_ms.append(start.elapsed_time(end))
            codes_ms.append((seen - began) * 1e3)
            wall_ms.append((done - began) * 1e3)
    return {
        "median_ms": statistics.median(device_ms),
        "p99_ms": float(np.quantile(device_ms, 0.99, method="inverted_cdf")),
        "codes_seen_ms": statistics.median(codes_ms),
        "host_ms": statistics.median(wall_ms),
    }


def profile_frame(
    kernel: Kernel, shape: KernelShape, streams: TrialStreams, batch: int, frames: int, *, wide: bool = False
) -> dict[str, Any]:
    """Where a frame's time goes: by kind of phase, of work (mean and slowest block) and hand-over.

    Microseconds are counted at the highest clock of the device; under load it runs slower.
    """
    launches = [Launch("decode", streams.rows(range(batch), frame), wide=wide) for frame in range(frames)]
    ticks = torch.stack([kernel.profile(launch) for launch in launches]).double() / kernel.clock_hz * 1e6
    ticks[ticks == 0] = torch.nan  # blocks without work in a phase
    work = ticks[:, :, 1:, 0] - ticks[:, :, :-1, 1]
    wait = ticks[:, :, 1:-1, 1] - ticks[:, :, 1:-1, 0]
    kinds: dict[str, dict[str, list[float]]] = {}
    for index, phase in enumerate(schedule(shape, launches[0])):
        after = " after a choice" if phase.picks is not None else ""
        entry = kinds.setdefault(f"{phase.stack} {phase.type.kind}{after}", {})
        if index < wait.shape[2]:
            entry.setdefault("mean_work_us", []).append(float(work[:, :, index].nanmean()))
            entry.setdefault("slowest_work_us", []).append(float(work[:, :, index].nan_to_num(0).amax(1).median()))
            entry.setdefault("hand_over_us", []).append(float(wait[:, :, index].nan_to_num(torch.inf).amin(1).median()))
    return {
        kind: {"phases": len(entry["mean_work_us"])} | {name: statistics.mean(values) for name, values in entry.items()}
        for kind, entry in kinds.items()
        if entry
    }


def _say_profile(profile: dict[str, Any], say: Callable[[str], None]) -> None:
    for kind, entry in profile.items():
        say(f"  {kind}: " + ", ".join(f"{name} {value:.2f}" for name, value in entry.items()))


def _time_launches(kernel: Kernel, launches: Sequence[Launch]) -> dict[str, float]:
    """Median milliseconds of a launch that follows another one, and of one that the idle device has to wait for."""
    marks = [_event() for _ in range(len(launches) + 1)]
    marks[0].record()
    for launch, mark in zip(launches, marks[1:], strict=True):
        kernel.run(launch)
        mark.record()
    kernel.check()
    alone = []
    for launch in launches:
        start, end = _event(), _event()
        start.record()
        kernel.run(launch)
        end.record()
        kernel.check()
        alone.append(start.elapsed_time(end))
    queued = [before.elapsed_time(after) for before, after in pairwise(marks)]
    return {"median_ms": float(statistics.median(queued)), "alone_ms": float(statistics.median(alone))}


def time_reading(model: PackedModel, repeats: int = 50) -> float:
    """Milliseconds to read a frame's weights once: the packed buffer itself, the predictor's part 15 times."""
    sizes = frame_bytes(model.shape)
    module = GpuModule.compiled(model.shape, model.device, source="read.cu")
    entry = module.entry("megatalker_read")
    out = torch.zeros(16, dtype=torch.uint8, device=model.device)
    arguments = Arguments(
        ctypes.c_void_p(model.weights.data.data_ptr()),
        ctypes.c_uint64(sizes["once"] // 16),
        ctypes.c_uint64(sizes["again"] // 16),
        ctypes.c_int(model.shape.code_groups - 1),
        ctypes.c_void_p(out.data_ptr()),
    )
    times = []
    for _ in range(repeats):
        start, end = _event(), _event()
        start.record()
        module.start(entry, 3 * model.shape.blocks, 512, arguments)
        end.record()
        torch.cuda.synchronize(model.device)
        times.append(start.elapsed_time(end))
    return float(statistics.median(times))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
