"""Philox4x32-10, the counter-based random generator of the sampling contract, in torch integers.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Words are int64 tensors holding values in
[0, 2**32). No product overflows a signed 64-bit integer, so compiled code has no undefined behaviour.
"""

import torch
from torch import Tensor

# The one home of these numbers; the kernels, which import nothing of ours, have copies that a test compares.
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def round_keys(key: tuple[int, int]) -> list[tuple[int, int]]:
    """The key of each of the ten rounds, from the two 32-bit words of the key."""
    return [((key[0] + n * KEY_STEPS[0]) & WORD, (key[1] + n * KEY_STEPS[1]) & WORD) for n in range(ROUNDS)]


def signed_multipliers(device: torch.device) -> Tensor:
    """The constant ``[2]`` int64 that :func:`philox4x32` multiplies with: the multipliers minus 2**32."""
    return torch.tensor([multiplier - 2**32 for multiplier in MULTIPLIERS], device=device)


def philox4x32(even: Tensor, odd: Tensor, keys: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor]:
    """Encrypt counters.

    Args:
        even: counter words 0 and 2, int64 ``[2, ...]``.
        odd: counter words 1 and 3, int64 ``[2, ...]``.
        keys: :func:`round_keys` as int64 ``[10, 2, ...]``, broadcast against the words.
        multipliers: :func:`signed_multipliers` as ``[2, ...]``.

    Returns:
        Output words 0 and 2, and output words 1 and 3, each int64 ``[2, ...]``.
    """
    for key in keys.unbind(0):
        # M = multiplier + 2**32 with a negative multiplier of 30 bits: low and high word of even * M without overflow.
        product = even * multipliers
        high = (product >> 32) + even
        even, odd = high.flip(0) ^ odd ^ key, (product & WORD).flip(0)
    return even, odd
