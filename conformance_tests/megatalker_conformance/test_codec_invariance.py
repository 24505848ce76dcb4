"""Bit equality: a codec that declares it gives a stream the same samples however calls are cut and shared."""

import random
from collections.abc import Iterator, Sequence
from itertools import cycle

import pytest
import torch
from torch import Tensor

from megatalker.plugins.checked import CheckedCodec
from megatalker_conformance.checks import require
from megatalker_conformance.codes import CodeSource
from megatalker_conformance.promises import INVARIANCE, broken

FRAMES = 80
"""Past the 72 of the transformer's window."""
OLDEST = 100
"""Frames that neighbours have behind them, at most."""


def _cut(codes: Tensor, sizes: Iterator[int]) -> Iterator[Tensor]:
    """Consecutive pieces of these sizes, the last one as long as the rest."""
    while len(codes):
        size = next(sizes)
        yield codes[:size]
        codes = codes[size:]


def _say(codec: CheckedCodec, codes: Tensor, sizes: Sequence[int] = (1,)) -> Tensor:
    """Decode piece by piece with one state."""
    state = codec.open()
    return torch.cat([codec.decode([state], [piece])[0].cpu() for piece in _cut(codes, cycle(sizes))])


def _expect_equal(found: Tensor, expected: Tensor, shown_by: str) -> None:
    differing = int((found != expected).sum())
    if differing:
        first = int((found != expected).nonzero()[0])
        broken(
            INVARIANCE,
            shown_by=shown_by,
            expected=f"sample {first}: {float(expected[first])!r}, as frame by frame and alone",
            found=f"{float(found[first])!r}; {differing} of {len(found)} samples differ",
        )


@pytest.mark.parametrize("sizes", [(2,), (3, 1), (8,), (1, 16, 5), (FRAMES,)], ids=str)
def test_chunking_changes_no_bit(codec: CheckedCodec, code_source: CodeSource, sizes: tuple[int, ...]) -> None:
    require(codec.capabilities, "chunk_invariant")
    codes = code_source.random(FRAMES, seed=31)
    _expect_equal(_say(codec, codes, sizes), _say(codec, codes), f"{FRAMES} frames in chunks of {sizes}")


@pytest.mark.parametrize("neighbours", [1, 3, 17, 63])
def test_neighbours_change_no_bit(
    codec: CheckedCodec, code_source: CodeSource, conformance_seed: int, neighbours: int
) -> None:
    """Neighbours of any age take as many frames as the stream, or others, and it stands anywhere among them."""
    require(codec.capabilities, "chunk_invariant")
    if codec.max_streams is not None:
        neighbours = min(neighbours, codec.max_streams - 1)
    choose = random.Random(f"{conformance_seed} {neighbours}")
    codes, company = (code_source.random(count, seed=seed) for count, seed in ((12, 32), (OLDEST, 33)))
    others, old = [codec.open()], codec.open()
    while len(others) < neighbours:
        codec.decode([old], [company[: choose.randint(1, 2 * OLDEST // (neighbours + 1))]])
        others.append(old.copy())
    state, chunks, calls = codec.open(), [], []
    for piece in _cut(codes, iter((1, 3, 5, 3))):
        here = choose.sample(others[:neighbours], choose.choice((neighbours, choose.randint(1, neighbours))))
        counts = [choose.choice((len(piece), choose.randint(1, 4))) for _ in here]
        given, place = [company[:count] for count in counts], choose.randint(0, len(here))
        here[place:place], given[place:place] = [state], [piece]
        calls.append(f"frames={[len(each) for each in given]}, the stream at place {place}")
        chunks.append(codec.decode(here, given)[place].cpu())
    _expect_equal(torch.cat(chunks), _say(codec, codes), "\n".join(calls))


def test_a_copied_state_goes_on_with_the_same_bits(codec: CheckedCodec, code_source: CodeSource) -> None:
    require(codec.capabilities, "chunk_invariant")
    codes = code_source.random(20, seed=34)
    state = codec.open()
    codec.decode([state], [codes[:7]])
    twin = state.copy()
    (expected,) = codec.decode([state], [codes[7:]])
    found = torch.cat([codec.decode([twin], [frame[None]])[0] for frame in codes[7:]])
    _expect_equal(found.cpu(), expected.cpu(), "7 frames, a copy, 13 frames at once and one by one with the copy")
