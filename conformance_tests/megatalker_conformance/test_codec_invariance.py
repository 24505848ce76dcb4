"""Bit equality: a codec that declares it gives a stream the same samples however calls are cut and shared."""

from itertools import cycle

import pytest
import torch
from torch import Tensor

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.checks import require
from megatalker_conformance.codes import CodeSource
from megatalker_conformance.test_codec_exactness import cut, say

FRAMES = 80
"""Past the 72 of the transformer's window."""


def _differing(found: Tensor, expected: Tensor) -> int:
    return int((found != expected).sum())


@pytest.mark.parametrize("sizes", [(2,), (3, 1), (8,), (1, 16, 5), (FRAMES,)], ids=str)
def test_chunking_changes_no_bit(codec: CheckedCodec, code_source: CodeSource, sizes: tuple[int, ...]) -> None:
    require(codec.capabilities, "chunk_invariant")
    codes = code_source.random(FRAMES, seed=31)
    frame_by_frame = say(codec, cut(codes, cycle([1])))
    assert _differing(say(codec, cut(codes, cycle(sizes))), frame_by_frame) == 0


@pytest.mark.parametrize("neighbours", [1, 3, 9])
def test_neighbours_change_no_bit(codec: CheckedCodec, code_source: CodeSource, neighbours: int) -> None:
    """The stream stands last in calls, and its neighbours take as many frames as it, or others."""
    require(codec.capabilities, "chunk_invariant")
    codes, company = (code_source.random(24, seed=seed) for seed in (32, 33))
    alone = say(codec, cut(codes, cycle([1])))
    others, state, chunks = [codec.open() for _ in range(neighbours)], codec.open(), []
    for start in range(0, len(codes), 3):
        counts = [1 + (start + index) % 3 for index in range(neighbours)]
        calls = [company[start : start + count] for count in counts]
        chunks.append(codec.decode([*others, state], [*calls, codes[start : start + 3]])[-1].cpu())
    assert _differing(torch.cat(chunks), alone) == 0


def test_a_copied_state_goes_on_with_the_same_bits(codec: CheckedCodec, code_source: CodeSource) -> None:
    require(codec.capabilities, "chunk_invariant")
    codes = code_source.random(20, seed=34)
    state = codec.open()
    codec.decode([state], [codes[:7]])
    twin = state.copy()
    (expected,) = codec.decode([state], [codes[7:]])
    found = torch.cat([codec.decode([twin], [frame[None]])[0] for frame in codes[7:]])
    assert _differing(found, expected) == 0
