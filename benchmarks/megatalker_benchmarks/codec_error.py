"""Error of the CUDA codec's two precisions: ``megatalker bench codec-error --help``.

The truth is one forward of the official decoder over all frames in float32 on the same device; beside ours stands the
official decoder in 16 bits. Signal-to-noise ratios are of the whole, and of the worst second that is not silent. By
layer: each product's output with ``fast`` against the one with ``exact``, all errors before it included. ``telephone``:
at 8 kHz as mu-law, against the exact samples at 8 kHz. Codes are those of a text that the checkpoint speaks on the CPU,
again and again, or random ones.
"""

import argparse
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import cycle
from math import inf, log10
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker import Engine, Settings
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.interfaces import LoadContext
from megatalker.serving.samples import SampleEncoder, SampleFormat
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.fused import decoder as fused
from megatalker_backends.streaming.fused.kernels import Kernels
from megatalker_backends.streaming.fused.runner import FusedMemory, words_of
from megatalker_backends.streaming.fused.weights import FusedWeights, PackedProduct
from megatalker_backends.streaming.model import StreamingDecoder
from megatalker_backends.streaming.settings import StreamingSettings
from megatalker_backends.streaming.weights import Weights
from megatalker_benchmarks.codec_frame import PUBLISHED, official_samples, random_codes
from megatalker_benchmarks.report import add_json_option, hand_out, whole
from megatalker_kernels.codec.launcher import CodecKernels
from megatalker_kernels.codec.numbers import Numbers
from megatalker_kernels.codec.structures import MAX_FRAMES

CHUNKS: Mapping[str, Iterable[int]] = {"1": (1,), "8": (8,), "1 to 8": range(1, 9)}
"""Frames of the calls of a stream, again and again."""
SILENT_DB = 30.0
"""A second whose power is this far below that of the whole counts as silent."""
TELEPHONE_RATE = 8000
OFFICIAL = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def ratio_db(truth: Tensor, found: Tensor) -> float:
    """Signal-to-noise ratio in dB; infinite where both are equal."""
    noise = float((found.double() - truth.double()).square().sum())
    return 10 * log10(float(truth.double().square().sum()) / noise) if noise else inf


def errors(truth: Tensor, found: Tensor) -> dict[str, float]:
    """Compare samples ``[samples]`` of one utterance."""
    loudest = float(truth.square().mean()) * 10 ** (-SILENT_DB / 10)
    seconds = zip(truth.split(SAMPLE_RATE), found.split(SAMPLE_RATE), strict=True)
    worst = min(ratio_db(one, other) for one, other in seconds if float(one.square().mean()) >= loudest)
    return {
        "snr_db": round(ratio_db(truth, found), 1),
        "worst_second_snr_db": round(worst, 1),
        "max_abs_error": float((found - truth).abs().max()),
    }


@torch.inference_mode()
def spoken(codec: StreamingCodec, codes: Tensor, sizes: Iterable[int]) -> Tensor:
    """Decode one stream's codes in chunks of these sizes."""
    state, chunks, at = codec.open(), [], 0
    for size in cycle(sizes):
        if at >= len(codes):
            return torch.cat(chunks).float().cpu()
        chunks += codec.decode([state], [codes[at : at + size]])
        at += size
    raise AssertionError("cycle ends with the codes")


def telephone(exact: Tensor, fast: Tensor) -> dict[str, float]:
    """Return how far mu-law alone is from 8 kHz samples, and how far ``fast`` is with it."""
    truth, law, both = (
        torch.from_numpy(_at_8_khz(samples.numpy(), kind))
        for samples, kind in ((exact, None), (exact, "pcm_mulaw"), (fast, "pcm_mulaw"))
    )
    return {"mulaw_snr_db": round(ratio_db(truth, law), 1), "fast_mulaw_snr_db": round(ratio_db(truth, both), 1)}


def _at_8_khz(samples: NDArray[np.float32], kind: SampleFormat | None) -> NDArray[np.float32]:
    encoder = SampleEncoder(kind or "f32le", TELEPHONE_RATE)
    data = encoder.encode(samples) + encoder.finish()
    if kind is None:
        return np.frombuffer(data, "<f4").copy()
    shape = {"samplerate": TELEPHONE_RATE, "channels": 1, "format": "RAW", "subtype": "ULAW"}
    decoded: NDArray[np.float32] = soundfile.read(io.BytesIO(data), dtype="float32", **shape)[0]
    return decoded


def draw(exact: Tensor, fast: Tensor, file: Path) -> None:
    """Draw the spectrograms of both, and of their difference, on one scale (extra ``bench``)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), sharey=True, layout="constrained")
    for axis, samples, title in zip(axes, (exact, fast, fast - exact), ("exact", "fast", "difference"), strict=True):
        image = axis.specgram(
            samples.numpy(), NFFT=512, noverlap=384, Fs=SAMPLE_RATE, vmin=-140, vmax=-30, mode="psd", cmap="magma"
        )[3]
        axis.set(title=title, xlabel="s", yticks=range(0, 12_001, 2000))
    axes[0].set_ylabel("Hz")
    figure.colorbar(image, ax=axes, label="dB/Hz")
    figure.savefig(file, dpi=100)
    plt.close(figure)


class RecordedKernels(Kernels):
    """Adds the output of each product to ``made``."""

    def __init__(self, made: list[tuple[PackedProduct, Tensor]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made = made

    def _multiply(
        self, matrix: PackedProduct, rows: Tensor, raw: Tensor | None, packed: Tensor | None, *others: Any
    ) -> None:
        super()._multiply(matrix, rows, raw, packed, *others)
        found = self._launcher.numbers.unpack(packed) if packed is not None else raw
        assert found is not None
        self.made.append((matrix, found.clone()))


def named(part: Any, name: str = "") -> Iterator[tuple[str, PackedProduct]]:
    """Name all products of the decoder's weights by their place."""
    if isinstance(part, PackedProduct):
        yield name, part
    elif isinstance(part, list):
        for index, one in enumerate(part):
            yield from named(one, f"{name}.{index}")
    elif is_dataclass(part):
        for one in fields(part):
            yield from named(getattr(part, one.name), f"{name}.{one.name}")
    elif isinstance(part, FusedWeights):
        for key, one in vars(part).items():
            yield from named(one, key)


@torch.inference_mode()
def by_layer(checkpoint: Checkpoint, codes: Tensor, device: torch.device) -> dict[str, float]:
    """Return the signal-to-noise ratio of each product's output, in the order of the decoder."""
    config, made = checkpoint.codec_config, list[list[tuple[str, Tensor]]]()
    decoder = StreamingDecoder(config, Weights(checkpoint.codec_tensor, "decoder"))
    for numbers in (Numbers.HALVES, Numbers.HALF):
        kernels = CodecKernels(device, numbers)
        weights = FusedWeights(decoder, device, numbers, warpgroups=kernels.has_warpgroups)
        one = fused.FusedDecoder(weights, config, kernels)
        names = {id(product): name for name, product in named(weights)}
        memory = FusedMemory.blank(one, device)
        words = words_of(codes[None, :MAX_FRAMES].cpu(), [memory]).to(device)
        outputs: list[tuple[PackedProduct, Tensor]] = []
        with mock.patch.object(fused, "Kernels", partial(RecordedKernels, outputs)):
            one.step(words, min(len(codes), MAX_FRAMES))
        made.append([(names[id(matrix)], found.float().cpu()) for matrix, found in outputs])
    exact, fast = made
    return {name: round(ratio_db(truth, found), 1) for (name, truth), (_, found) in zip(exact, fast, strict=True)}


def codes_of(checkpoint: Checkpoint, text: str | None, frames: int) -> Tensor:
    """Return codes ``[frames, groups]`` int64 of this text, or random ones."""
    if text is None:
        return random_codes(checkpoint, frames)
    settings = Settings(
        checkpoint=str(checkpoint.folder), device="cpu", backend="compiled", backends={"compiled": {"compile": "off"}}
    )
    with Engine.open(settings) as engine:
        chunks = list(engine.speak(text, seed=1, return_codes=True))
    codes = np.concatenate([chunk.codes for chunk in chunks if chunk.codes is not None])
    return torch.from_numpy(codes[np.arange(frames) % len(codes)])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="by default random weights at the published shapes")
    parser.add_argument("--text", help="its codes are decoded; by default random ones")
    parser.add_argument("--frames", type=whole(), default=375)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--picture", type=Path, help="spectrograms of the first two seconds")
    add_json_option(parser)
    options = parser.parse_args()
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(options.checkpoint or write_checkpoint(Path(folder), PUBLISHED))
        codecs = {
            name: StreamingCodec(
                checkpoint, LoadContext(device, torch.float32, StreamingSettings(kernels="on", precision=name))
            )
            for name in ("exact", "fast")
        }
        codes = codes_of(checkpoint, options.text, options.frames)
        truth = official_samples(checkpoint, codes, device, torch.float32)
        made = {
            name: {chunks: spoken(codec, codes, sizes) for chunks, sizes in CHUNKS.items()}
            for name, codec in codecs.items()
        }
        exact, fast = (chunked["1"] for chunked in made.values())
        if options.picture is not None:
            draw(exact[: 2 * SAMPLE_RATE], fast[: 2 * SAMPLE_RATE], options.picture)
        found = {
            "checkpoint": options.checkpoint or "random weights at the published shapes",
            "seconds": len(codes) * FRAME_SAMPLES / SAMPLE_RATE,
            "official": {
                name: errors(truth, official_samples(checkpoint, codes, device, dtype))
                for name, dtype in OFFICIAL.items()
            },
            "ours": {
                name: {chunks: errors(truth, samples) for chunks, samples in chunked.items()}
                for name, chunked in made.items()
            },
            "telephone": telephone(exact, fast),
            "fast_by_layer_snr_db": by_layer(checkpoint, codes, device),
        }
    hand_out(found, options.json)


if __name__ == "__main__":
    main()
