"""The comparison of cloned voices with the official ones tells what differs, and forgives rounding only."""

import pytest
import torch

from megatalker.voices import Voice
from megatalker_conformance.verify.encoders import CLOSE, compare_voice

CODES = torch.arange(48).reshape(3, 16)
EMBEDDING = torch.linspace(-1, 1, 8)
VOICE = Voice(x_vector=EMBEDDING, reference_codes=CODES, reference_text_ids=(1,), checkpoint_fingerprint="abc")


def test_rounding_is_forgiven() -> None:
    compared = compare_voice(VOICE, EMBEDDING + CLOSE / 2, CODES)
    assert compared.equal
    assert str(compared) == "equal what the official package gives"


def test_codes_count_only_where_the_voice_has_any() -> None:
    alone = Voice(x_vector=EMBEDDING, checkpoint_fingerprint="abc")
    assert compare_voice(alone, EMBEDDING, None).equal
    assert compare_voice(alone, EMBEDDING, CODES).equal


@pytest.mark.parametrize(
    ("embedding", "codes", "found"),
    [
        (EMBEDDING + 3 * CLOSE, CODES, "embedding off by 3e-05"),
        (EMBEDDING[:-1], CODES, "embedding off by inf"),
        (EMBEDDING * torch.nan, CODES, "embedding off by nan"),
        (EMBEDDING, CODES.flip(0), "other codes in 2 frames"),
        (EMBEDDING, CODES[:2], "other codes in 3 frames"),
        (EMBEDDING + 1, CODES[:2], "embedding off by 1, other codes in 3 frames"),
    ],
)
def test_what_differs_is_told(embedding: torch.Tensor, codes: torch.Tensor, found: str) -> None:
    compared = compare_voice(VOICE, embedding, codes)
    assert not compared.equal
    assert str(compared).endswith(f": {found}")
