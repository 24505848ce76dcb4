"""Rows of prompts, packed into launches."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_voices import voice
from megakernel_helpers import megakernel
from megatalker.checkpoint import Checkpoint
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.interfaces import DecodeStep, StreamRequest
from megatalker_backends.megakernel.inputs import SlotPrompt, packed
from megatalker_kernels.constants import CHUNK

Positions = list[list[tuple[int, int, int]]]


def positions(rows: list[tuple[int, int]], most_rows: int, most_chunks: int = 1000) -> Positions:
    """Slot, first position and the one behind the last, of each part of each launch."""
    prompts = [SlotPrompt(slot, torch.zeros(count, 1), known) for slot, (count, known) in enumerate(rows)]
    launches = packed(prompts, most_rows, most_chunks)
    return [[(prompt.slot, part.start, part.stop) for prompt, part in launch] for launch in launches]


@pytest.mark.parametrize(
    ("rows", "most_rows", "expected"),
    [
        ([], 4, []),
        ([(3, 0), (2, 0)], 8, [[(0, 0, 3), (1, 0, 2)]]),
        ([(3, 1), (9, 8)], 8, [[(0, 1, 3), (1, 8, 9)]]),
        ([(3, 0), (3, 0)], 4, [[(0, 0, 3), (1, 0, 1)], [(1, 1, 3)]]),
        ([(4, 0), (4, 0)], 4, [[(0, 0, 4)], [(1, 0, 4)]]),
        ([(9, 0)], 4, [[(0, 0, 4)], [(0, 4, 8)], [(0, 8, 9)]]),
    ],
)
def test_launches_are_full_and_in_order(rows: list[tuple[int, int]], most_rows: int, expected: Positions) -> None:
    assert positions(rows, most_rows) == expected


def test_far_positions_fill_a_launch_sooner() -> None:
    """Positions 127 and 128 attend to one and two pieces."""
    assert positions([(130, 126)], 8, 4) == [[(0, 126, 129)], [(0, 129, 130)]]
    assert positions([(130, 128)], 8, 1) == [[(0, 128, 129)], [(0, 129, 130)]]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 299)), max_size=8),
    st.integers(1, 400),
    st.integers(1, 900),
)
def test_a_launch_ends_where_the_next_position_does_not_fit(
    prompts: list[tuple[int, int]], most_rows: int, most_chunks: int
) -> None:
    rows = [(count, known) for count, known in prompts if known < count]
    launches = positions(rows, most_rows, most_chunks)
    flat = [[(slot, place) for slot, start, stop in launch for place in range(start, stop)] for launch in launches]
    assert list(chain.from_iterable(flat)) == [
        (slot, place) for slot, (count, known) in enumerate(rows) for place in range(known, count)
    ]
    taken = [sum(place // CHUNK + 1 for _, place in launch) for launch in flat]
    for launch, chunks in zip(flat, taken, strict=True):
        assert len(launch) == 1 or (len(launch) <= most_rows and chunks <= most_chunks)
    for (launch, chunks), following in zip(zip(flat, taken, strict=True), flat[1:], strict=False):
        assert len(launch) == most_rows or chunks + following[0][1] // CHUNK + 1 > most_chunks


def test_bad_requests_hold_nothing(tiny_1b7: Checkpoint) -> None:
    decoder = megakernel(tiny_1b7, max_streams=1, pages=1)
    each = voice(tiny_1b7, 1, 4, 1)
    for request in (
        replace(each.request, history=(5000,)),
        StreamRequest(torch.tensor(1.0)),
        StreamRequest(each.request.embeds * torch.nan),
    ):
        with pytest.raises(InvalidRequestError):
            decoder.prefill([request])
    with pytest.raises(CapacityError, match="holds 64 positions"):
        decoder.prefill([voice(tiny_1b7, 1, 65, 1).request])
    stream = decoder.prefill([each.request])[0]
    with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
        decoder.decode([DecodeStep(stream, each.text[0], forced=[0] * 15 + [128])])()
    with pytest.raises(CapacityError, match="1 of 1 streams"):
        decoder.prefill([each.request])
    decoder.release(stream)
    with pytest.raises(InvalidRequestError, match="was released"):
        decoder.release(stream)
    assert decoder.decode([])() == []
    decoder.prefill([each.request])
