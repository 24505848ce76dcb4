"""Trial of a codec on random codes: whether float16 holds its numbers, and the error of rounding to it."""

from collections.abc import Iterator

import torch
from torch import Tensor

from megatalker.checkpoint.config import CodecConfig
from megatalker_backends.streaming.fused.decoder import FusedDecoder
from megatalker_backends.streaming.fused.runner import FusedMemory, words_of
from megatalker_kernels.codec.numbers import LARGEST
from megatalker_kernels.codec.structures import MAX_FRAMES

STREAMS, FRAMES, STEPS = 4, MAX_FRAMES, 3
ROOM = 16.0
"""Other codes may be louder than random ones by this factor."""


def why_not_float16(decoder: FusedDecoder, config: CodecConfig, device: torch.device) -> str | None:
    """Say what is too large for products of float16 numbers; ``None`` if nothing is."""
    if not decoder.largest_weight <= LARGEST:
        return f"its weights reach {decoder.largest_weight:.3g}, more than float16 holds"
    inputs = _max_of(decoder.largest_input(words, FRAMES) for words in _steps(decoder, config, device))
    if not inputs <= LARGEST / ROOM:
        return f"random codes give activations of {inputs:.3g}, too close to the end of float16 ({LARGEST:.0f})"
    return None


def largest_difference(one: FusedDecoder, other: FusedDecoder, config: CodecConfig, device: torch.device) -> float:
    """Return the largest difference between the samples of two decoders of the same codec on random codes."""
    pairs = zip(_steps(one, config, device), _steps(other, config, device), strict=True)
    return _max_of(float((one.step(mine, FRAMES) - other.step(theirs, FRAMES)).abs().max()) for mine, theirs in pairs)


def _max_of(values: Iterator[float]) -> float:
    """The largest, NaN if any is."""
    return float(torch.tensor(list(values)).max())


def _steps(decoder: FusedDecoder, config: CodecConfig, device: torch.device) -> Iterator[Tensor]:
    """Words of consecutive steps of the same streams."""
    memories = [FusedMemory.blank(decoder, device) for _ in range(STREAMS)]
    generator = torch.Generator().manual_seed(0)
    shape = (STREAMS, FRAMES, config.num_quantizers)
    for _ in range(STEPS):
        codes = torch.randint(config.codebook_size, shape, generator=generator)
        yield words_of(codes, memories).to(device)
        memories = [memory.after(FRAMES) for memory in memories]
