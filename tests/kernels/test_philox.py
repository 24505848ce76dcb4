"""Philox's numbers stand in three places that must not import one another; they are the same."""

import re
from pathlib import Path

import numpy as np

import megatalker_kernels
from megatalker.sampling import numpy_sampler, philox
from megatalker_kernels import choice

SOURCE = Path(megatalker_kernels.__file__).parent / "csrc" / "sampler.cuh"


def test_the_kernels_have_the_numbers_of_the_sampling_contract() -> None:
    assert choice.ROUNDS == philox.ROUNDS
    assert choice.MULTIPLIERS == philox.MULTIPLIERS
    assert choice.KEY_STEPS == philox.KEY_STEPS


def test_so_has_the_cuda_source() -> None:
    body = re.search(r"inline float gumbel\(.*?\n}", SOURCE.read_text(), re.DOTALL)
    assert body is not None
    number = r"0x([0-9A-F]+)u"
    for place, multiplier in enumerate(philox.MULTIPLIERS):
        assert {int(found, 16) for found in re.findall(rf"{number}(?:, | \* )c\[{2 * place}\]", body[0])} == {
            multiplier
        }
    assert [int(digits, 16) for digits in re.findall(rf"k\d \+= {number}", body[0])] == list(philox.KEY_STEPS)
    assert f"round < {philox.ROUNDS}" in body[0]


def test_both_numpy_versions_encrypt_alike() -> None:
    counter = np.random.default_rng(1).integers(0, 2**32, (4, 100), dtype=np.uint64)
    key = (0xA4093822, 0x299F31D0)
    assert np.array_equal(choice.philox(counter, key), numpy_sampler.philox4x32(counter, key))
    published = np.array([[0x243F6A88], [0x85A308D3], [0x13198A2E], [0x03707344]], dtype=np.uint64)
    expected = [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert numpy_sampler.philox4x32(published, key).ravel().tolist() == expected
