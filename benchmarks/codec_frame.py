"""Times one call of the ``streaming`` codec, and the official decoder's full forward beside it. Prints JSON.

python benchmarks/codec_frame.py --shape published --device cuda --output codec.json
"""

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint_recipe import DEMO, PUBLISHED_0B6, TINY
from megatalker.device import resolve_device
from megatalker.interfaces import LoadContext
from megatalker.official import load_official_codec
from megatalker.random_checkpoint import write_checkpoint
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings

RECIPES = {
    "demo": DEMO,
    # the published codec beside a small language model: the codec is all that is timed
    "published": replace(TINY, codec=PUBLISHED_0B6.codec, codebook_size=PUBLISHED_0B6.codebook_size),
}
STREAMS = (1, 4, 8)
FRAMES = (1, 8)
OFFICIAL_FRAMES = (1, 8, 73)


def main(
    shape: Annotated[Literal["demo", "published"], typer.Option(help="Random weights of this shape.")] = "demo",
    checkpoint: Annotated[Path | None, typer.Option(help="Time this checkpoint's codec instead.")] = None,
    device: str = "auto",
    repeats: int = 30,
    compile: Annotated[bool, typer.Option(help="As the codec's setting.")] = False,  # noqa: A002 - the setting's name
    cuda_graphs: Annotated[bool, typer.Option(help="As the codec's setting.")] = True,
    tf32: Annotated[bool, typer.Option(help="As the codec's setting.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON here as well.")] = None,
) -> None:
    """Time the streaming codec for 1, 4 and 8 streams of 1 and 8 frames."""
    settings = StreamingSettings(compile=compile, cuda_graphs=cuda_graphs, tf32=tf32)
    context = LoadContext(resolve_device(device), torch.float32, settings)
    with tempfile.TemporaryDirectory() as folder:
        opened = Checkpoint.open(checkpoint or write_checkpoint(Path(folder), RECIPES[shape]))
        report = {
            "command": " ".join(sys.argv),
            "checkpoint": str(checkpoint or shape),
            "settings": settings.model_dump(),
            "environment": _environment(context.device),
            **_streaming(opened, context, repeats),
            "official": _official(opened, context.device, repeats),
        }
    text = json.dumps(report, indent=2)
    typer.echo(text)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")


def _streaming(checkpoint: Checkpoint, context: LoadContext, repeats: int) -> dict[str, Any]:
    codec = StreamingCodec(checkpoint, context)
    started = time.perf_counter()
    codec.warmup()
    _synchronize(context.device)
    warmup = time.perf_counter() - started
    rows = []
    for streams in STREAMS:
        for frames in FRAMES:
            states = [codec.open() for _ in range(streams)]
            codes = [_codes(checkpoint, frames) for _ in range(streams)]
            timing = _time(lambda states=states, codes=codes: codec.decode(states, codes), context.device, repeats)
            rows.append({"streams": streams, "frames": frames, **timing})
    return {"warmup_s": round(warmup, 2), "streaming": rows}


def _official(checkpoint: Checkpoint, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    decoder = load_official_codec(checkpoint, device, torch.float32).model.decoder
    rows = []
    with torch.inference_mode():
        for frames in OFFICIAL_FRAMES:
            codes = _codes(checkpoint, frames).T[None].to(device)
            timing = _time(lambda codes=codes: decoder(codes), device, max(3, repeats // frames))
            rows.append({"streams": 1, "frames": frames, **timing})
    return rows


def _codes(checkpoint: Checkpoint, frames: int) -> torch.Tensor:
    config = checkpoint.codec_config
    return torch.randint(config.codebook_size, (frames, config.num_quantizers))


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


def _environment(device: torch.device) -> dict[str, str | int]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": str(device),
        "name": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    typer.run(main)
