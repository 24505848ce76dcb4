"""Rows of prompts, packed into launches."""

import pytest
import torch

from megatalker_backends.megakernel.prompts import Prompt, packed

Positions = list[list[tuple[int, int, int]]]


def positions(rows: list[tuple[int, int]], most_rows: int, most_chunks: int = 1000) -> Positions:
    """Slot, first position and the one behind the last, of each part of each launch."""
    prompts = [Prompt(slot, torch.zeros(count, 1), known) for slot, (count, known) in enumerate(rows)]
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
