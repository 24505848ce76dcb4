"""Exactness: chunks laid end to end equal one full forward of the official decoder, however they were cut."""

from collections.abc import Iterator
from itertools import cycle

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.codes import CodeSource, OfficialCodec
from megatalker_conformance.measure import Measure

EXACT = 1e-4
LONG = 400
"""Frames: well past the 72 of the transformer's window, and past 300, where the official chunking is inexact."""


def _random_sizes(largest: int) -> Iterator[int]:
    generator = torch.Generator().manual_seed(largest)
    while True:
        yield int(torch.randint(1, largest + 1, (1,), generator=generator))


def cut(codes: Tensor, sizes: Iterator[int]) -> list[Tensor]:
    """Consecutive pieces of these sizes, the last one as long as the rest."""
    pieces = []
    while len(codes):
        size = next(sizes)
        pieces.append(codes[:size])
        codes = codes[size:]
    return pieces


def say(codec: CheckedCodec, pieces: list[Tensor]) -> Tensor:
    """Decode piece by piece with one state."""
    state = codec.open()
    chunks = []
    for piece in pieces:
        (chunk,) = codec.decode([state], [piece])
        assert chunk.shape == (len(piece) * FRAME_SAMPLES,), "every frame comes out of the call that got it"
        assert chunk.dtype == torch.float32
        chunks.append(chunk.cpu())
    return torch.cat(chunks)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_equal_chunks_equal_one_full_forward(
    codec: CheckedCodec,
    code_source: CodeSource,
    official_codec: OfficialCodec,
    measure: Measure,
    codec_frames: int,
    size: int,
) -> None:
    codes = code_source.random(codec_frames, seed=1)
    found = say(codec, cut(codes, cycle([size])))
    measure("largest difference", float((found - official_codec.decode(codes)).abs().max()), EXACT)


def test_random_chunks_equal_one_full_forward_of_a_long_utterance(
    codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec, measure: Measure
) -> None:
    codes = code_source.random(LONG, seed=2)
    found = say(codec, cut(codes, _random_sizes(96)))
    measure("largest difference", float((found - official_codec.decode(codes)).abs().max()), EXACT)


def test_one_call_equals_one_full_forward(
    codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec, measure: Measure
) -> None:
    codes = code_source.random(LONG, seed=3)
    found = say(codec, [codes])
    measure("largest difference", float((found - official_codec.decode(codes)).abs().max()), EXACT)
    assert found.abs().max() <= 1
    assert found.abs().max() > 0, "silence would hide every difference"


def test_interleaved_streams_keep_apart(
    codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec, measure: Measure
) -> None:
    """Streams of different lengths share calls with different company and different numbers of frames."""
    speech = [code_source.random(count, seed=10 + count) for count in (20, 33, 78)]
    pieces = [cut(codes, _random_sizes(9 + index)) for index, codes in enumerate(speech)]
    states = [codec.open() for _ in speech]
    found: list[list[Tensor]] = [[] for _ in speech]
    tick = 0
    while any(pieces):
        ready = [index for index, left in enumerate(pieces) if left and (tick + index) % 3]
        ready = ready if tick % 2 else ready[::-1]
        if ready:
            chunks = codec.decode([states[index] for index in ready], [pieces[index].pop(0) for index in ready])
            for index, chunk in zip(ready, chunks, strict=True):
                found[index].append(chunk.cpu())
        tick += 1
    for codes, chunks in zip(speech, found, strict=True):
        difference = float((torch.cat(chunks) - official_codec.decode(codes)).abs().max())
        measure(f"largest difference of {len(codes)} frames", difference, EXACT)


def test_a_new_state_remembers_nothing(
    codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec, measure: Measure
) -> None:
    codes = code_source.random(12, seed=4)
    say(codec, [code_source.random(80, seed=5)])
    measure("largest difference", float((say(codec, [codes]) - official_codec.decode(codes)).abs().max()), EXACT)


def test_a_copied_state_goes_its_own_way(
    codec: CheckedCodec, code_source: CodeSource, official_codec: OfficialCodec, measure: Measure
) -> None:
    head, one, two = (code_source.random(count, seed=20 + count) for count in (75, 9, 8))
    state = codec.open()
    codec.decode([state], [head])
    twin = state.copy()
    (first,) = codec.decode([state], [one])
    (second,) = codec.decode([twin], [two])
    for tail, chunk in ((one, first), (two, second)):
        expected = official_codec.decode(torch.cat((head, tail)))[len(head) * FRAME_SAMPLES :]
        measure(f"largest difference of {len(tail)} frames", float((chunk.cpu() - expected).abs().max()), EXACT)
