"""More streams than the engine can make, in virtual time: speech that is delivered, and requests that wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker_benchmarks.virtual_engine import Listener, VirtualCaller, VirtualEngine, at_once, poisson
from megatalker_benchmarks.virtual_machine import H200, VirtualClock

pytestmark = pytest.mark.slow

PLAYED_S = 4.0
OFFERED = (500, 600, 800, 1000)
LEAST_DELIVERED = 0.95
"""Share of the speech at 600 offered streams that is made at more."""
MOST_GAP_S = 0.005
SOON_S = 0.05
CONDITIONS = [(1.0, 8), (1.2, 9), (1.4, 6), (1.4, 7), (1.4, 8)]
"""How many times as long calls take the host as they usually do, and the seed of what delays them."""
WITH_GAPS = [((1.0, 3), 600), ((1.0, 9), 800), ((1.0, 10), 1000), ((1.4, 5), 800)]
"""Conditions and numbers of offered streams in which gaps of 49 to 160 ms were seen."""


@dataclass(frozen=True)
class Run:
    """Streams that began at once, and their speech."""

    listeners: Sequence[Listener]

    @property
    def speech_s(self) -> float:
        """Seconds of speech that were made."""
        return sum(one.frames for one in self.listeners) * FRAME_SECONDS

    @property
    def longest_gap_s(self) -> float:
        return max((gap for one in self.listeners for gap in one.gaps_s), default=0.0)


Condition = tuple[float, int]
Offer = Callable[..., Run]


@pytest.fixture(params=CONDITIONS, ids="host {0[0]} seed {0[1]}".format, scope="module")
def condition(request: pytest.FixtureRequest) -> Condition:
    host, seed = request.param
    return host, seed


@pytest.fixture(scope="module")
def offer(tiny_custom_voice: Checkpoint) -> Offer:
    """Offer a number of endless streams at once, under a condition."""

    @cache
    def offered(condition: Condition, count: int) -> Run:
        callers = at_once(count, speech_s=60.0, max_ahead_s=2.0)
        return Run(listen_in(condition, tiny_custom_voice, callers, until_s=1.0 + PLAYED_S))

    return offered


def listen_in(
    condition: Condition, checkpoint: Checkpoint, callers: Sequence[VirtualCaller], until_s: float
) -> Sequence[Listener]:
    host, seed = condition
    return VirtualEngine(checkpoint, VirtualClock(H200.at(host), seed)).listen(callers, until_s)


@pytest.mark.parametrize("count", [800, 1000])
def test_what_is_offered_beyond_capacity_hardly_lowers_what_is_delivered(offer: Offer, count: int) -> None:
    """Also in the first seconds of an engine, in which it learns what it can carry."""
    best, delivered = (sum(offer(one, offered).speech_s for one in CONDITIONS) for offered in (600, count))
    assert delivered >= LEAST_DELIVERED * best


@pytest.mark.parametrize("count", OFFERED)
def test_no_listener_hears_a_gap_however_many_streams_are_offered(
    offer: Offer, condition: Condition, count: int
) -> None:
    assert offer(condition, count).longest_gap_s <= MOST_GAP_S


def test_no_listener_hears_a_gap_however_many_streams_are_offered_in_bad_conditions(offer: Offer) -> None:
    assert max(offer(condition, count).longest_gap_s for condition, count in WITH_GAPS) <= MOST_GAP_S


def test_no_request_waits_for_ever(tiny_custom_voice: Checkpoint, condition: Condition) -> None:
    """300 requests a second for 3 s ask for about twice the speech that can be made meanwhile."""
    callers = poisson(300, 3, seed=condition[1], speech_s=4.0)
    listeners = listen_in(condition, tiny_custom_voice, callers, until_s=60)
    assert [one.frames for one in listeners] == [50] * len(callers)


def test_an_owner_with_one_stream_is_heard_soon_while_another_offers_800(
    tiny_custom_voice: Checkpoint, condition: Condition
) -> None:
    """Though its request is the last of them."""
    many = at_once(800, speech_s=60.0, max_ahead_s=2.0, owner="many")
    last = VirtualCaller(at=2.5, speech_s=60.0, max_ahead_s=2.0, owner="few")
    *_, few = listen_in(condition, tiny_custom_voice, [*many, last], until_s=3.5)
    assert 0 < few.first_s < SOON_S
    assert few.gaps_s == []
