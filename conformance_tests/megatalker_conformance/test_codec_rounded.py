"""A codec that multiplies rounded numbers: its error is noise, and less than the official decoder has in float16."""

import pytest
import torch
from torch import Tensor

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codes import ROUNDED_FRAMES, CodeSource, OfficialCodec
from megatalker_conformance.measure import Measure

CHUNKS = (1, 2, 5, 1, 13, 8, 34, 1, 3, 80)
MOST_GAIN_ERROR = 2e-3
"""Noise that has nothing to do with the samples leaves their gain as it is, nearly."""


def test_errors_of_rounded_products_are_noise_and_less_than_the_official_ones(
    codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec, measure: Measure
) -> None:
    if codec.capabilities.product_bits is None:
        pytest.skip("the codec's products are not rounded")
    codes = code_source.random(ROUNDED_FRAMES, seed=8)
    truth, rounded = official_codec.decode(codes), official_codec.decode_rounded(codes)
    state, chunks, start = codec.open(), list[Tensor](), 0
    while start < len(codes):
        size = CHUNKS[len(chunks) % len(CHUNKS)]
        chunks += codec.decode([state], [codes[start : start + size]])
        start += size
    found = torch.cat(chunks).float().cpu()
    measure("root mean square of the error", _mean_error(found, truth), _mean_error(rounded, truth))
    gain = float((found.double() * truth.double()).sum() / truth.double().square().sum())
    measure("error of the gain", abs(gain - 1), MOST_GAIN_ERROR)


def _mean_error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).double().square().mean().sqrt())
