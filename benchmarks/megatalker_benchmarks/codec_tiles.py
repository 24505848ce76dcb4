"""Times every product of the published codec with each of many tiles: what the rule of ``codec/tiles.py`` was read off.

megatalker bench codec-tiles --numbers half --call 64x2 --json codec_tiles.json
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Structure
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import CodecConfig
from megatalker.plugins.graphs import GraphCapture
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker_backends.streaming.fused.decoder import FusedDecoder
from megatalker_backends.streaming.fused.weights import FusedWeights
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.weights import Weights
from megatalker_benchmarks.codec_frame import PUBLISHED
from megatalker_benchmarks.report import add_json_option, keep
from megatalker_kernels.codec.launcher import CodecKernels
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.structures import TICKET_WORDS, ProductStep
from megatalker_kernels.codec.tiles import TILES, WARPGROUP_TILES, Tile, WarpgroupTile, choose_tiling

SIZES = (
    (8, 16, 1, 1, 4, 128, 6), (8, 16, 1, 1, 8, 128, 4), (8, 16, 1, 1, 8, 128, 6), (16, 32, 1, 1, 4, 64, 6),
    (16, 32, 2, 1, 4, 64, 6), (32, 32, 1, 1, 4, 64, 6), (32, 32, 1, 1, 8, 128, 3), (32, 32, 2, 1, 4, 64, 6),
    (32, 48, 1, 1, 4, 64, 4), (32, 48, 2, 1, 2, 32, 6), (32, 48, 2, 1, 4, 64, 4), (32, 96, 1, 2, 4, 64, 3),
    (32, 96, 2, 2, 2, 32, 4), (32, 96, 2, 2, 4, 64, 3), (64, 48, 2, 1, 2, 32, 4), (64, 48, 2, 1, 4, 64, 3),
    (64, 48, 4, 1, 2, 64, 3), (64, 96, 2, 2, 1, 32, 4), (64, 96, 2, 2, 2, 32, 4), (64, 96, 4, 2, 1, 32, 4),
    (128, 48, 4, 1, 2, 64, 3), (128, 96, 4, 2, 1, 32, 3),
)  # fmt: skip
CANDIDATES = [Tile(*sizes, resident=1, together=1, least_stages=1, most_shares=1) for sizes in SIZES]
WARPGROUPS = [WarpgroupTile(*sizes) for sizes in (
    (128, 32, 3, 2), (128, 32, 2, 2), (128, 32, 2, 3), (128, 16, 4, 3), (128, 16, 3, 3), (128, 16, 5, 2),
    (128, 64, 2, 1), (64, 32, 3, 2), (64, 32, 4, 3), (64, 32, 3, 3), (64, 32, 2, 4), (64, 16, 5, 4), (64, 16, 4, 4),
    (64, 64, 2, 3),
)]  # fmt: skip
SHARES = (1, 2, 3, 4, 6, 8, 12, 16)
CALLS = ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (32, 1), (64, 1), (1, 2), (1, 4), (1, 8), (64, 2))
"""Streams and frames."""
MOST_BLOCKS = 6
"""The most blocks of a split product for each processor: more only wait."""
IN_A_ROW, REPEATS = 16, 6


class Recorder:
    """Launches kernels and records the products among them."""

    def __init__(self, kernels: CodecKernels) -> None:
        self._kernels = kernels
        self.processors = kernels.processors
        self.numbers = kernels.numbers
        self.has_warpgroups = kernels.has_warpgroups
        self.products: dict[tuple[int, int, int, int, bool], list[ProductStep]] = {}

    def launch(self, kernel: str, blocks: int, threads: int, shared_bytes: int, argument: Structure) -> None:
        self._kernels.launch(kernel, blocks, threads, shared_bytes, argument)
        if isinstance(argument, ProductStep):
            inputs, columns = argument.input, argument.epilogue.columns
            key = (inputs.rows, columns, argument.taps, inputs.words, argument.eps >= 0)
            self.products.setdefault(key, []).append(ProductStep.from_buffer_copy(argument))


@contextmanager
def kept_tensors() -> Iterator[None]:
    """Keep every tensor made within this context: recorded launches point to it."""
    made: list[Tensor] = []
    empty = torch.empty

    def keep(*sizes: Any, **options: Any) -> Tensor:
        made.append(empty(*sizes, **options))
        return made[-1]

    with mock.patch("torch.empty", keep):
        yield


class Trial:
    """Runs one recorded product in any way.

    Args:
        device: a CUDA device.
        numbers: what products multiply.
    """

    def __init__(self, device: torch.device, numbers: Numbers) -> None:
        self.numbers = numbers
        self.has_warpgroups = CodecKernels(device, numbers).has_warpgroups
        warpgroups = dict.fromkeys((*WARPGROUP_TILES[numbers], *WARPGROUPS)) if self.has_warpgroups else ()
        self.candidates = [*CANDIDATES, *warpgroups]
        self._kernels = {tile: CodecKernels(device, numbers, (tile,)) for tile in (*TILES, *self.candidates)}
        self.processors = self._kernels[TILES[0]].processors
        self._weight = numbers.pack(torch.randn(2**25, device=device))  # of any product, in any order
        self._partial = torch.empty(2**26, device=device)
        self._arrivals = torch.zeros(2**16, dtype=torch.int32, device=device)
        self._capture = GraphCapture(device)

    def fits(self, product: ProductStep, tile: Tile | WarpgroupTile, shares: int) -> bool:
        """Whether this way is worth a trial."""
        rows, columns = product.input.rows, product.epilogue.columns
        split = shares > 1
        return (
            (tile.rows < 4 * rows or tile.rows <= 8)
            and shares <= tile.stages_of(product.taps, product.input.words)
            and not (product.eps >= 0 and (split or isinstance(tile, WarpgroupTile)))
            and not (split and tile.count(rows, columns) * shares > MOST_BLOCKS * self.processors)
            and not (split and shares * rows * columns > self._partial.numel())
        )

    def microseconds(self, product: ProductStep, tile: Tile | WarpgroupTile, shares: int) -> float:
        """Return the best time of several rows of launches."""
        tried = ProductStep.from_buffer_copy(product)
        tried.shares, tried.arrivals, tried.weight = shares, self._arrivals.data_ptr(), self._weight.data_ptr()
        tried.partial = self._partial.data_ptr() if shares > 1 else None
        blocks = tile.count(product.input.rows, product.epilogue.columns) * shares
        kernels = self._kernels[tile]

        def launch() -> None:
            for _ in range(IN_A_ROW):
                kernels.launch(tile.kernel, blocks, tile.threads, tile.shared_bytes, tried)

        return _best(self._capture(launch)) / IN_A_ROW


def _best(run: Callable[[], None]) -> float:
    """Microseconds."""
    times = []
    for _ in range(REPEATS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) * 1e3)
    return min(times)


@torch.inference_mode()
def measure(weights: FusedWeights, config: CodecConfig, trial: Trial, streams: int, frames: int) -> dict[str, Any]:
    """Time the products of one codec call, as they are cut and as they could be cut."""
    device = weights.table.device
    with kept_tensors():
        recorder = Recorder(CodecKernels(device, trial.numbers))
        decoder = FusedDecoder(weights, config, recorder)
        memory = torch.zeros(streams, 2 * decoder.context_size + decoder.cache_size, device=device)
        words = torch.zeros(streams, TICKET_WORDS + frames * config.num_quantizers, dtype=torch.int64)
        for ticket, own in zip(words, memory, strict=True):
            contexts = own.data_ptr(), own[decoder.context_size :].data_ptr()
            ticket[:TICKET_WORDS] = torch.tensor([*contexts, own[2 * decoder.context_size :].data_ptr(), 0])
        decoder.step(words.to(device), frames)
        rows = [_measure(trial, *entry) for entry in recorder.products.items()]
    return {
        "streams": streams,
        "frames": frames,
        "us": round(sum(row["count"] * row["us"] for row in rows), 1),
        "best_us": round(sum(row["count"] * min(row["us"], row["best"][0]["us"]) for row in rows), 1),
        "products": rows,
    }


def _measure(trial: Trial, key: tuple[int, int, int, int, bool], products: list[ProductStep]) -> dict[str, Any]:
    product = products[0]
    rows, columns, taps, words, whole = key
    warpgroups = trial.numbers if trial.has_warpgroups and not whole else None
    sizes = (rows, columns, taps, words, trial.processors)
    chosen = choose_tiling(*sizes, whole=whole, warpgroups=warpgroups)
    tried = [
        {"tile": _sizes(tile), "shares": shares, "us": round(trial.microseconds(product, tile, shares), 2)}
        for tile in trial.candidates
        for shares in SHARES
        if trial.fits(product, tile, shares)
    ]
    return {
        "rows": rows,
        "columns": columns,
        "width": taps * words,
        "count": len(products),
        "tile": _sizes(chosen.tile),
        "shares": chosen.shares,
        "us": round(trial.microseconds(product, chosen.tile, chosen.shares), 2),
        "best": sorted(tried, key=lambda one: one["us"])[:5],
    }


def _sizes(tile: Tile | WarpgroupTile) -> list[int]:
    if isinstance(tile, WarpgroupTile):
        return [tile.rows, tile.columns, tile.depth, tile.stages, tile.resident]
    return [tile.rows, tile.columns, tile.high, tile.wide, tile.deep, tile.depth, tile.stages]


def _call(text: str) -> tuple[int, int]:
    streams, frames = text.split("x")
    return int(streams), int(frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = {numbers.name.lower(): numbers for numbers in Numbers}
    parser.add_argument(
        "--numbers", choices=named, default="halves", help="of products; `half` is that of precision fast"
    )
    parser.add_argument("--call", type=_call, action="append", help="STREAMSxFRAMES; repeatable")
    add_json_option(parser)
    options = parser.parse_args()
    numbers = named[options.numbers]
    device = torch.device("cuda", torch.cuda.current_device())
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(write_checkpoint(Path(folder), PUBLISHED))
        config = checkpoint.codec_config
        decoder = StreamingDecoder(config, Weights(checkpoint.codec_tensor, "decoder"))
    trial = Trial(device, numbers)
    weights = FusedWeights(decoder, device, numbers, warpgroups=trial.has_warpgroups)
    calls = []
    for streams, frames in options.call or CALLS:
        calls.append(measure(weights, config, trial, streams, frames))
        print({name: calls[-1][name] for name in ("streams", "frames", "us", "best_us")})  # noqa: T201
        if options.json:
            keep({"numbers": options.numbers, "calls": calls}, options.json)


if __name__ == "__main__":
    main()
