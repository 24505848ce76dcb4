"""Start times of requests, and the search for the largest bearable load."""

import asyncio

import pytest

from megatalker.cli.bench.traffic import GRAIN, Traffic, largest


def test_endless_streams_and_bursts_begin_at_once_or_over_a_ramp() -> None:
    assert list(Traffic("streams", 3).starts(10, seed=0)) == [0, 0, 0]
    assert list(Traffic("streams", 4, ramp_s=2.0).starts(10, seed=0)) == [0, 0.5, 1.0, 1.5]
    assert list(Traffic("burst", 2).starts(10, seed=0)) == [0, 0]


def test_random_arrivals_have_the_rate_asked_for_and_can_be_repeated() -> None:
    traffic = Traffic("rate", 50)
    moments = list(traffic.starts(100, seed=3))
    assert len(moments) == pytest.approx(5000, rel=0.1)
    assert moments == sorted(moments)
    assert moments[-1] < 100
    assert moments == list(traffic.starts(100, seed=3))
    assert moments != list(traffic.starts(100, seed=4))
    gaps = [later - earlier for earlier, later in zip([0, *moments], moments, strict=False)]
    assert sum(gap < 0.02 for gap in gaps) / len(gaps) == pytest.approx(1 - 2.718281828**-1, abs=0.05), "exponential"


@pytest.mark.parametrize("bearable", [0, 1, 7, 16, 17, 100, 500, 1024])
def test_the_largest_bearable_load_is_found_to_a_sixteenth(bearable: int) -> None:
    tried: list[int] = []

    async def bears(number: int) -> bool:
        tried.append(number)
        return number <= bearable

    found = asyncio.run(largest(bears, first=16, most=1024))
    assert found <= bearable
    assert bearable - found <= max(1, bearable // GRAIN)
    assert len(tried) <= 16
    assert max(tried) <= 1024
    assert len(set(tried)) == len(tried)
