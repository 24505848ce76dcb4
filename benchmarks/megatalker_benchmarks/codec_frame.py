"""Times calls of the ``streaming`` codec in each way it can run, with kernel counts and the error; prints JSON.

megatalker bench codec --shape published --device cuda --profile --output codec.json
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_codec
from megatalker.cli.bench.report import environment
from megatalker.cli.options import prepare_file
from megatalker.interfaces import LoadContext
from megatalker.plugins.device import resolve_device
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import PUBLISHED_0B6, TINY
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_benchmarks.report import hand_out, keep

PUBLISHED = replace(TINY, codec=PUBLISHED_0B6.codec, codebook_size=PUBLISHED_0B6.codebook_size)
"""The published codec with a small language model: only the codec is timed."""
WAYS: dict[str, dict[str, bool | str]] = {
    "default": {},
    "kernels": {"kernels": "on"},
    "fast": {"kernels": "on", "precision": "fast"},
    "launches": {"kernels": "on", "cuda_graphs": False},
    "torch": {"kernels": "off"},
    "eager": {"kernels": "off", "cuda_graphs": False},
    "compiled": {"compile": True},
}
OFFICIAL_FRAMES = (1, 8, 73)
CHECKED_FRAMES = 96
"""Frames that are checked: more than the attention window, and a multiple of the chunks that are timed."""


def main(
    shape: Annotated[Literal["demo", "published"], typer.Option(help="The demo, or random weights.")] = "demo",
    checkpoint: Annotated[Path | None, typer.Option(help="Time this checkpoint's codec instead.")] = None,
    device: str = "auto",
    way: Annotated[list[str], typer.Option(help=f"Any of {', '.join(WAYS)}; repeatable.")] = ["default"],  # noqa: B006
    streams: Annotated[list[int], typer.Option(help="Repeatable.")] = [1, 4, 8],  # noqa: B006
    frames: Annotated[list[int], typer.Option(help="Repeatable.")] = [1, 8],  # noqa: B006
    repeats: int = 30,
    profile: Annotated[bool, typer.Option(help="On CUDA, add each call's kernels: their number and longest.")] = False,
    official: Annotated[bool, typer.Option(help="Time the official decoder's full forward as well.")] = True,
    output: Annotated[Path | None, typer.Option(help="Write the JSON here as well, after every way.")] = None,
) -> None:
    """Time the streaming codec, and measure its error against one full official forward on the CPU."""
    place = resolve_device(device)
    if output is not None:
        prepare_file(output)
    with tempfile.TemporaryDirectory() as folder:
        named = write_checkpoint(Path(folder), PUBLISHED) if shape == "published" else "demo"
        opened = Checkpoint.open(checkpoint or named)
        codes = random_codes(opened, CHECKED_FRAMES)
        report: dict[str, Any] = {
            "environment": environment(place, checkpoint=str(checkpoint or shape)),
            "official": _official(opened, place, repeats) if official else [],
            "streaming": [],
        }
        expected = official_samples(opened, codes, torch.device("cpu"), torch.float32)
        for name in way:
            context = LoadContext(place, torch.float32, StreamingSettings.model_validate(WAYS[name]))
            calls = [(count, size) for count in streams for size in frames]
            measured = _streaming(opened, context, calls, codes, expected, repeats, profile=profile)
            report["streaming"].append({"way": name, **measured})
            if output is not None:
                keep(report, output)
    hand_out(report, None)


def _streaming(
    checkpoint: Checkpoint,
    context: LoadContext,
    calls: list[tuple[int, int]],
    codes: Tensor,
    expected: Tensor,
    repeats: int,
    *,
    profile: bool,
) -> dict[str, Any]:
    started = time.perf_counter()
    codec = StreamingCodec(checkpoint, context)
    _synchronize(context.device)
    return {
        "settings": context.settings.model_dump(),
        "load_s": round(time.perf_counter() - started, 2),
        "calls": [_call(codec, context.device, call, codes, expected, repeats, profile=profile) for call in calls],
    }


def _call(
    codec: StreamingCodec,
    device: torch.device,
    call: tuple[int, int],
    codes: Tensor,
    expected: Tensor,
    repeats: int,
    *,
    profile: bool,
) -> dict[str, Any]:
    streams, frames = call
    states = [codec.open() for _ in range(streams)]
    chunk = [codes[:frames]] * streams
    started = time.perf_counter()
    codec.decode([state.copy() for state in states], chunk)
    _synchronize(device)
    prepared = round(time.perf_counter() - started, 2)
    error = 0.0
    for start in range(0, CHECKED_FRAMES, frames):
        for samples in codec.decode(states, [codes[start : start + frames]] * streams):
            same = expected[start * 1920 : (start + frames) * 1920]
            error = max(error, float((samples.cpu() - same).abs().max()))
    timing = _time(lambda: codec.decode(states, chunk), device, repeats)
    kernels = _kernels(lambda: codec.decode(states, chunk)) if profile and device.type == "cuda" else {}
    return {"streams": streams, "frames": frames, "prepare_s": prepared, **timing, "max_abs_error": error, **kernels}


def _kernels(call: Callable[[], object]) -> dict[str, Any]:
    """Name the kernels that one call runs on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(5):
            call()
        torch.cuda.synchronize()
    found = [entry for entry in recorded.key_averages() if entry.self_device_time_total > 0]
    found.sort(key=lambda entry: -entry.self_device_time_total)
    return {
        "kernels": sum(entry.count for entry in found) / 5,
        "kernels_us": round(sum(entry.self_device_time_total for entry in found) / 5, 1),
        "longest": [
            f"{entry.self_device_time_total / 5:8.1f} us {entry.count / 5:6.1f} x  {entry.key[:120]}"
            for entry in found[:12]
        ],
    }


def _official(checkpoint: Checkpoint, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    decoder = load_official_codec(checkpoint, device, torch.float32).model.decoder
    rows = []
    with torch.inference_mode():
        for frames in OFFICIAL_FRAMES:
            codes = random_codes(checkpoint, frames).T[None].to(device)
            timing = _time(lambda codes=codes: decoder(codes), device, max(3, repeats // frames))
            rows.append({"streams": 1, "frames": frames, **timing})
    return rows


@torch.inference_mode()
def official_samples(checkpoint: Checkpoint, codes: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """``[samples]`` float32 on the CPU: one forward of the official decoder over codes ``[frames, groups]``, without
    TF32.
    """
    decoder = load_official_codec(checkpoint, device, dtype).model.decoder
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        samples: Tensor = decoder(codes.T[None].to(device))[0, 0]
    return samples.float().cpu()


def random_codes(checkpoint: Checkpoint, frames: int) -> Tensor:
    """Codes ``[frames, groups]`` int64, always the same."""
    config = checkpoint.codec_config
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.codebook_size, (frames, config.num_quantizers), generator=generator)


def _time(call: Callable[[], object], device: torch.device, repeats: int) -> dict[str, float]:
    times = []
    for attempt in range(repeats + 2):
        started = time.perf_counter()
        call()
        _synchronize(device)
        if attempt >= 2:
            times.append((time.perf_counter() - started) * 1e3)
    return {"median_ms": round(statistics.median(times), 3), "best_ms": round(min(times), 3)}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run() -> None:
    """Command line."""
    typer.run(main)


if __name__ == "__main__":
    run()
