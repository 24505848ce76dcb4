"""Philox's numbers stand in two packages that must not import one another; they are the same."""

import re
from pathlib import Path

import numpy as np

import megatalker_kernels
from megatalker.sampling import numpy_sampler, philox
from megatalker_kernels import constants
from megatalker_kernels.spec import sampler

SOURCE = Path(megatalker_kernels.__file__).parent / "csrc" / "sampler.cuh"
PAIRS = ("PHILOX_MULTIPLIERS", "PHILOX_WEYL")


def test_the_kernels_have_the_numbers_of_the_sampling_contract() -> None:
    assert constants.PHILOX_ROUNDS == philox.ROUNDS
    assert constants.PHILOX_MULTIPLIERS == philox.MULTIPLIERS
    assert constants.PHILOX_WEYL == philox.KEY_STEPS


def test_the_cuda_source_takes_them_from_there() -> None:
    body = re.search(r"inline float gumbel\(.*?\n}", SOURCE.read_text(), re.DOTALL)
    assert body is not None
    assert "MULTIPLIERS[] = {MT_PHILOX_MULTIPLIERS}, WEYL[] = {MT_PHILOX_WEYL};" in body[0]
    given = {name: [int(word[:-1], 16) for word in constants.macros()[name].split(",")] for name in PAIRS}
    assert given == {"PHILOX_MULTIPLIERS": list(philox.MULTIPLIERS), "PHILOX_WEYL": list(philox.KEY_STEPS)}
    for place in range(2):
        assert f"MULTIPLIERS[{place}] * c[{2 * place}]" in body[0]
        assert f"__umulhi(MULTIPLIERS[{place}], c[{2 * place}])" in body[0]
        assert f"k{place} += WEYL[{place}];" in body[0]
    assert "round < MT_PHILOX_ROUNDS" in body[0]


def test_both_numpy_versions_encrypt_alike() -> None:
    counter = np.random.default_rng(1).integers(0, 2**32, (4, 100), dtype=np.uint64)
    key = (0xA4093822, 0x299F31D0)
    assert np.array_equal(sampler.philox(counter, key), numpy_sampler.philox4x32(counter, key))
    published = np.array([[0x243F6A88], [0x85A308D3], [0x13198A2E], [0x03707344]], dtype=np.uint64)
    expected = [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert numpy_sampler.philox4x32(published, key).ravel().tolist() == expected
