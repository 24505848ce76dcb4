"""The first second of an engine on a machine that it does not know: what it lets in, it can carry."""

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.settings import Settings
from megatalker_benchmarks.virtual_engine import VirtualEngine, at_once
from megatalker_benchmarks.virtual_machine import H200, PROCESSOR, VirtualClock

pytestmark = pytest.mark.slow

MOST_GAP_S = 0.01
MACHINES = {
    "quick host": H200.at(0.5),
    "H200": H200,
    "slow host": H200.at(2.5),
    "half an H200": H200.at(1.0, 2.0),
    "slow host and device": H200.at(2.0, 4.0),
    "processor": PROCESSOR,
    "slow processor": PROCESSOR.at(3.0, 3.0),
}
FEWEST = {"quick host": 600, "H200": 550, "slow host": 400, "half an H200": 250, "slow host and device": 80}
"""Streams that are heard within the first five seconds, at least."""


@pytest.mark.parametrize("count", [800, 2000])
@pytest.mark.parametrize("name", MACHINES)
def test_nobody_who_is_let_in_hears_a_gap(tiny_custom_voice: Checkpoint, name: str, count: int) -> None:
    settings = Settings(max_streams=2048, max_waiting=4096, max_open=4096)
    engine = VirtualEngine(tiny_custom_voice, VirtualClock(MACHINES[name]), settings)
    listeners = engine.listen(at_once(count, speech_s=60.0, max_ahead_s=2.0), 6.0)
    assert max((gap for one in listeners for gap in one.gaps_s), default=0.0) <= MOST_GAP_S
    assert sum(one.first_s > 0 for one in listeners) >= FEWEST.get(name, 4)


def test_what_can_be_sustained_is_known_before_anybody_comes(tiny_custom_voice: Checkpoint) -> None:
    for machine in (PROCESSOR, PROCESSOR.at(3.0, 3.0)):
        settled, fresh = (VirtualEngine(tiny_custom_voice, VirtualClock(machine)) for _ in range(2))
        fresh.run(0.9)
        settled.listen(at_once(100, speech_s=60.0, max_ahead_s=2.0), 6.0)
        most = settled.state.costs.sustainable_streams
        assert 0.6 * most <= fresh.state.costs.proven_streams <= 1.5 * most
        assert fresh.state.counters.frames == 0, "nobody has heard any"
