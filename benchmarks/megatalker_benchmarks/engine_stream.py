"""TTFC, RTF and memory as a consumer of the engine sees them: ``megatalker bench stream --help``.

Chunks of one frame, PCM in the consumer's hands, on a warm engine.
"""

import argparse
import statistics
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from megatalker import Engine, SamplingParams, Settings
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.cli.bench.report import environment_of_engine
from megatalker.cli.status import Status
from megatalker_benchmarks.report import add_json_option, hand_out, whole

WORDS = ("the", "small", "boats", "sail", "home", "before", "it", "gets", "dark", "and", "cold")
ENDLESS = SamplingParams(min_new_tokens=2**31 - 1)


def sentence(engine: Engine, tokens: int) -> str:
    """Return words of at least ``tokens`` tokens of the checkpoint's tokenizer."""
    text, count = "", 0
    while len(engine.checkpoint.tokenizer.encode(text + ".")) < tokens:
        text += (" " if text else "") + WORDS[count % len(WORDS)]
        count += 1
    return text + "."


def speak(engine: Engine, text: str, seed: int, frames: int) -> tuple[float, float]:
    """Return milliseconds to the first chunk, and the RTF."""
    began = time.perf_counter()
    stream = engine.speak(text, seed=seed, sampling=ENDLESS, max_frames=frames)
    first = 0.0
    for chunk in stream:
        first = first or time.perf_counter() - began
        assert chunk.frames == 1
    assert stream.finish_reason is not None
    return first * 1e3, (time.perf_counter() - began) / (frames * FRAME_SECONDS)


def together(engine: Engine, text: str, streams: int, frames: int) -> list[tuple[float, float]]:
    """Return the same for each of several streams that begin at once."""
    results: list[tuple[float, float]] = []
    threads = [
        threading.Thread(target=lambda seed=seed: results.append(speak(engine, text, seed, frames)))
        for seed in range(streams)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=whole(), default=24)
    parser.add_argument("--frames", type=whole(), default=120)
    parser.add_argument("--rounds", type=whole(), default=20)
    parser.add_argument("--streams", type=whole(), default=8)
    add_json_option(parser)
    options = parser.parse_args()
    settings = Settings.read(
        checkpoint=options.checkpoint,
        backend=options.backend,
        device=options.device,
        max_chunk_frames=1,
        max_streams=options.streams,
    )
    with ExitStack() as stack:
        with Status() as status:
            status.stage("loading")
            engine = stack.enter_context(Engine.open(settings))
            began = time.perf_counter()
            engine.warmup()
            warm_s = time.perf_counter() - began
        text = sentence(engine, options.tokens)
        together(engine, text, options.streams, 8)
        alone = [speak(engine, text, seed, options.frames if seed < 3 else 8) for seed in range(options.rounds)]
        company = together(engine, text, options.streams, options.frames)
        firsts, (_, rtf) = [first for first, _ in alone], min(alone[:3], key=lambda one: one[1])
        report: dict[str, Any] = {
            "environment": environment_of_engine(engine),
            "tokens": len(engine.checkpoint.tokenizer.encode(text)),
            "warmup_s": warm_s,
            "ttfc_ms_median": statistics.median(firsts),
            "ttfc_ms_p95": float(np.quantile(firsts, 0.95, method="inverted_cdf")),
            "rtf": rtf,
            "company": {
                "streams": options.streams,
                "ttfc_ms_slowest": max(first for first, _ in company),
                "rtf_slowest": max(rtf for _, rtf in company),
            },
        }
        if engine.device.type == "cuda":
            free, total = torch.cuda.mem_get_info()
            report["memory_gb"] = {
                "device_in_use": (total - free) / 1e9,
                "torch_reserved": torch.cuda.memory_reserved() / 1e9,
                "torch_peak": torch.cuda.max_memory_allocated() / 1e9,
            }
    hand_out(report, options.json)


if __name__ == "__main__":
    main()
