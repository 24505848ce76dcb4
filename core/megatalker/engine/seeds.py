"""Seeds: one for the request, from it one for each segment of long text."""

import secrets

from megatalker.errors import InvalidRequestError
from megatalker.sampling import SamplingParams

_MASK = 2**64 - 1


def random_seed() -> int:
    """A seed nobody chose. Below 2**53, so that it survives JSON and spreadsheets."""
    return secrets.randbelow(2**53)


def request_seed(seed: int | None, sampling: SamplingParams | None) -> int:
    """The seed asked for, else that of the sampling parameters, else a random one.

    Raises:
        InvalidRequestError: ``sampling`` is something else.
    """
    if sampling is not None and not isinstance(sampling, SamplingParams):
        raise InvalidRequestError(f"sampling is {sampling!r}, expected SamplingParams")
    if seed is not None:
        return seed
    return random_seed() if sampling is None else sampling.seed


def segment_seed(seed: int, segment: int) -> int:
    """The seed of one segment: the request's own for the first, well mixed (SplitMix64) for the others."""
    if segment == 0:
        return seed
    mixed = (seed + segment * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
