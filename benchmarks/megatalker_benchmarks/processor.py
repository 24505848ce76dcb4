"""Times a frame at published shapes on a processor, for each format of weights, beside what reading them takes.

megatalker bench cpu --threads 2 --threads 4 --out results
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.cli.bench.report import command_line, environment, save
from megatalker.interfaces import Codec, DecodeStep, LoadContext, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import PUBLISHED_0B6, PUBLISHED_1B7
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.rounding import weights_per_frame
from megatalker_backends.compiled.settings import CompiledSettings
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_benchmarks.report import hand_out

FORMATS = {"float32": 4.0, "bfloat16": 2.0, "int8": 1 + 4 / 64, "int4": 0.5 + 4 / 32}
"""Bytes of a weight, with its share of a scale."""
SHAPES = {"0.6B": PUBLISHED_0B6, "1.7B": PUBLISHED_1B7}
PROMPT_ROWS = 40
CHUNK_FRAMES = 8
READ_BYTES = 2**29
"""Memory that is read to find out how quickly it can be: more than caches hold."""
READ_ROUNDS = 5
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class FormatResult:
    """The best of all rounds of one format with some threads."""

    threads: int
    weights: str
    load_s: float
    """Rounding included, where nothing is kept yet."""
    prefill_ms: float
    """A prompt of :data:`PROMPT_ROWS` rows."""
    frame_ms: float
    """Talker, code predictor and sampling."""
    codec_ms: float
    """A first chunk of one frame in the exact codec, float32."""
    chunk_frame_ms: float
    """A frame of the chunks of :data:`CHUNK_FRAMES` that a stream is given where the processor is nearly full."""
    floor_ms: float
    """Reading the frame's weights once from memory, and the predictor's as often as they are used."""

    @property
    def rtf(self) -> float:
        """Seconds for a second of speech in chunks of :data:`CHUNK_FRAMES`."""
        return (self.frame_ms + self.chunk_frame_ms) / (1000 * FRAME_SECONDS)

    @property
    def first_chunk_ms(self) -> float:
        return self.prefill_ms + self.frame_ms + self.codec_ms


@dataclass(frozen=True, slots=True)
class ProcessorReport:
    """The result of ``megatalker bench cpu``."""

    command: str
    environment: dict[str, str]
    shape: str
    compiled: bool
    results: list[FormatResult]
    derived: list[dict[str, float]]
    """RTF and first chunk of each result, in their order."""


@dataclass(frozen=True, slots=True)
class Order:
    """The work of one process."""

    folder: str
    cache: str
    """Folder for rounded weights, which goes with the run."""
    weights: Sequence[str]
    frames: int
    rounds: int
    compile: bool


def main(
    threads: Annotated[list[int], typer.Option(min=1, help="Processor threads, on as many cores; repeatable.")] = [2],  # noqa: B006
    weights: Annotated[list[str], typer.Option(help=f"Any of {', '.join(FORMATS)}; repeatable.")] = [*FORMATS],  # noqa: B006
    shape: Annotated[Literal["0.6B", "1.7B"], typer.Option(help="Published shapes, random weights.")] = "0.6B",
    checkpoint: Annotated[str | None, typer.Option(help="Time this checkpoint instead.")] = None,
    frames: Annotated[int, typer.Option(min=1, help="Timed frames of each format in each round.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; formats take turns, the best of all counts.")] = 5,
    compile: Annotated[bool, typer.Option(help="Compile float32 and bfloat16, which takes minutes.")] = False,  # noqa: A002
    out: Annotated[Path | None, typer.Option(help="Folder for cpu.json and cpu.png.")] = None,
) -> None:
    """Time formats of weights in turns, with each number of threads in a process of its own."""
    unknown = [name for name in weights if name not in FORMATS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}, expected any of {', '.join(FORMATS)}", param_hint="--weights")
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint or str(write_checkpoint(Path(scratch) / "checkpoint", SHAPES[shape]))
        order = Order(folder, str(Path(scratch) / "cache"), weights, frames, rounds, compile)
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawning, max_tasks_per_child=1) as processes:
            results = [found for count in threads for found in processes.submit(measure, order, count).result()]
    derived = [{"rtf": round(each.rtf, 3), "first_chunk_ms": round(each.first_chunk_ms, 1)} for each in results]
    facts = environment(CPU, checkpoint=checkpoint or shape)
    report = ProcessorReport(command_line(), facts, checkpoint or shape, compile, results, derived)
    hand_out(asdict(report), None)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for path in save(report, out, "cpu", partial(plot, report)):
            typer.echo(f"wrote {path}", err=True)


def measure(order: Order, threads: int) -> list[FormatResult]:
    """Measure every format with this many threads, on as many of the cores that the process may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["XDG_CACHE_HOME"] = order.cache
    torch.set_num_threads(threads)
    checkpoint = Checkpoint.open(order.folder)
    with torch.inference_mode():
        rate = _read_rate()
        subjects = [_Subject(checkpoint, name, order) for name in order.weights]
        codec = StreamingCodec(checkpoint, LoadContext(CPU, torch.float32, StreamingSettings()))
        codec_s = chunk_s = float("inf")
        for _ in range(order.rounds):
            for subject in subjects:
                subject.time_round(order.frames)
            codec_s = min(codec_s, _codec_frame(codec, checkpoint, 1, order.frames))
            chunk_s = min(chunk_s, _codec_frame(codec, checkpoint, CHUNK_FRAMES, order.frames))
        count = weights_per_frame(checkpoint.config)
        return [
            FormatResult(
                threads,
                subject.name,
                load_s=round(subject.load_s, 4),
                prefill_ms=_ms(subject.prefill_s),
                frame_ms=_ms(subject.frame_s),
                codec_ms=_ms(codec_s),
                chunk_frame_ms=_ms(chunk_s),
                floor_ms=_ms(count * FORMATS[subject.name] / rate),
            )
            for subject in subjects
        ]


class _Subject:
    """One decoder, and the best times that it took."""

    def __init__(self, checkpoint: Checkpoint, name: str, order: Order) -> None:
        self.name, self.prefill_s, self.frame_s = name, float("inf"), float("inf")
        compiling: Literal["on", "off"] = "on" if order.compile and name in ("float32", "bfloat16") else "off"
        settings = CompiledSettings(
            max_streams=1,
            max_positions=1024,
            compile=compiling,
            weights=None if name == "float32" else name,  # type: ignore[arg-type]  # checked by pydantic
        )
        began = time.perf_counter()
        decoder = CompiledDecoder(checkpoint, LoadContext(CPU, torch.float32, settings))
        decoder.warmup()
        self.load_s = time.perf_counter() - began
        self._decoder = CheckedTalker(decoder, checkpoint.config)
        generator = torch.Generator().manual_seed(1)
        self._prompt = 0.1 * torch.randn(PROMPT_ROWS, checkpoint.config.talker.hidden_size, generator=generator)

    def time_round(self, frames: int) -> None:
        """Say ``frames`` frames."""
        request = StreamRequest(self._prompt, SamplingParams(seed=1, min_new_tokens=2**31 - 1))
        began = time.perf_counter()
        (stream,) = self._decoder.prefill([request])
        self.prefill_s = min(self.prefill_s, time.perf_counter() - began)
        for _ in range(frames):
            self.frame_s = min(self.frame_s, _seconds(self._decoder.decode([DecodeStep(stream, self._prompt[0])])))
        self._decoder.release(stream)


def _codec_frame(codec: Codec, checkpoint: Checkpoint, frames: int, times: int) -> float:
    """Decode a chunk of ``frames`` frames ``times`` times; return the seconds for each frame of the quickest."""
    state = codec.open()
    codes = torch.ones(frames, checkpoint.config.num_code_groups, dtype=torch.int64)
    return min(_seconds(partial(codec.decode, [state], [codes])) for _ in range(times)) / frames


def _read_rate() -> float:
    """Bytes that can be read from memory in a second."""
    memory = torch.ones(READ_BYTES // 4)
    return READ_BYTES / min(_seconds(memory.sum) for _ in range(READ_ROUNDS))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def plot(report: ProcessorReport, plt: Any) -> Any:
    """Draw what a frame takes with each number of threads, beside its 80 ms."""
    counts = sorted({each.threads for each in report.results})
    figure, axes = plt.subplots(1, len(counts), figsize=(4 * len(counts), 3.2), squeeze=False, sharey=True)
    for axis, threads in zip(axes[0], counts, strict=True):
        found = [each for each in report.results if each.threads == threads]
        names = [each.weights for each in found]
        axis.bar(names, [each.frame_ms for each in found], color="#4477aa", label="talker and predictor")
        axis.bar(
            names,
            [each.chunk_frame_ms for each in found],
            bottom=[each.frame_ms for each in found],
            color="#ccbb44",
            label="codec",
        )
        axis.plot(names, [each.floor_ms for each in found], "_", color="black", markersize=24, label="reading weights")
        axis.axhline(1000 * FRAME_SECONDS, color="#cc6677", label="real time")
        axis.set_title(f"{report.shape}, {threads} threads")
    axes[0][0].set_ylabel("ms a frame")
    axes[0][0].legend(fontsize=8)
    return figure


def run() -> None:
    """Command line."""
    typer.run(main)


if __name__ == "__main__":
    run()
