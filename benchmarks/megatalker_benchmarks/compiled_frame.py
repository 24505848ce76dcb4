"""Times one decoding step of the ``compiled`` talker backend, and of ``reference`` for comparison; prints JSON.

megatalker bench compiled --batches 1 4 8 --compile off on --reference
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.report import environment
from megatalker.interfaces import DecodeStep, LoadContext, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.settings import CompiledSettings
from megatalker_backends.reference.decoder import ReferenceDecoder, ReferenceSettings
from megatalker_benchmarks.report import add_json_option, hand_out, whole


def main() -> None:
    options = _options()
    checkpoint = Checkpoint.open(options.checkpoint)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)

    def load(kind: str) -> CheckedTalker:
        if kind == "reference":
            plain = LoadContext(device, dtype, ReferenceSettings())
            return CheckedTalker(ReferenceDecoder(checkpoint, plain), checkpoint.config)
        settings = CompiledSettings(compile=kind, max_streams=max(options.batches))
        return CheckedTalker(CompiledDecoder(checkpoint, LoadContext(device, dtype, settings)), checkpoint.config)

    kinds = [*options.compile, *(["reference"] if options.reference else [])]
    report = {
        "environment": environment(device, checkpoint=checkpoint.name, dtype=options.dtype),
        "runs": [_run(kind, lambda kind=kind: load(kind), checkpoint, options) for kind in kinds],
    }
    hand_out(report, options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--batches", type=whole(), nargs="+", default=[1, 4, 8])
    parser.add_argument("--compile", nargs="+", default=["auto"], choices=["auto", "on", "off"])
    parser.add_argument("--reference", action="store_true", help="time the reference backend as well")
    parser.add_argument("--prompt", type=whole(), default=40, help="rows of each stream's prompt")
    parser.add_argument("--frames", type=whole(), default=50, help="timed frames, after five others")
    add_json_option(parser)
    return parser.parse_args()


def _run(
    kind: str, load: Callable[[], CheckedTalker], checkpoint: Checkpoint, options: argparse.Namespace
) -> dict[str, Any]:
    started = time.perf_counter()
    decoder = load()
    loaded = time.perf_counter()
    decoder.warmup()
    warm = time.perf_counter()
    return {
        "kind": kind,
        "load_s": round(loaded - started, 2),
        "warmup_s": round(warm - loaded, 2),
        "batches": [_time(decoder, batch, checkpoint, options) for batch in options.batches],
    }


def _time(decoder: CheckedTalker, batch: int, checkpoint: Checkpoint, options: argparse.Namespace) -> dict[str, Any]:
    hidden = checkpoint.config.talker.hidden_size
    embeds = 0.1 * torch.randn(options.prompt, hidden, generator=torch.Generator().manual_seed(1))
    prefills, frames = [], []
    streams = []
    for seed in range(batch):
        started = time.perf_counter()
        streams += decoder.prefill([StreamRequest(embeds, SamplingParams(seed=seed, min_new_tokens=2**31 - 1))])
        prefills.append(time.perf_counter() - started)
    steps = [DecodeStep(stream, embeds[0]) for stream in streams]
    for _ in range(5 + options.frames):
        started = time.perf_counter()
        decoder.decode(steps)()
        frames.append(time.perf_counter() - started)
    for stream in streams:
        decoder.release(stream)
    return {
        "streams": batch,
        "prefill_ms": _milliseconds(statistics.median(prefills)),
        "frame_ms_median": _milliseconds(statistics.median(frames[5:])),
        "frame_ms_best": _milliseconds(min(frames[5:])),
        "frame_ms_worst": _milliseconds(max(frames[5:])),
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


if __name__ == "__main__":
    main()
