"""Short attacks on a server in this process; the result of long ones lies under ``benchmarks/results``."""

import asyncio
import copy
from typing import Any

import pytest

from megatalker.checkpoint import Checkpoint
from megatalker_benchmarks.attack import attacked, wrong
from megatalker_benchmarks.attacks import ATTACKS
from serving import fakes_with, serving
from watched_server import WatchedServer


@pytest.mark.parametrize("name", ["handshakes", "unread_answers", "pings", "opens", "eight"])
def test_victims_are_heard_and_nothing_is_kept(tiny_custom_voice: Checkpoint, name: str) -> None:
    limits = {"send_timeout_s": 0.5, "request_timeout_s": 5.0}
    with serving(tiny_custom_voice, fakes_with(), server=limits) as served:
        found = asyncio.run(attacked(WatchedServer(served), name, {}, 1, 1.0, 4.0))
    assert found["about"]
    for phase in ("calm", "attack"):
        assert found[phase]["failed"] == {}
        assert found[phase]["http_first_chunk_ms"]["p95"] > 0
        assert found[phase]["websocket_first_chunk_ms"]["p95"] > 0
    held = found["held"]
    assert all(held["after"][what] <= before for what, before in held["before"].items()), held


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_says_what_it_does(name: str) -> None:
    assert ATTACKS[name].about.endswith(".")


PHASE = {"http_first_chunk_ms": {"p95": 40.0}, "websocket_first_chunk_ms": {"p95": 40.0}, "failed": {}, "gap_ms": 0.0}
FINE: dict[str, Any] = {
    "calm": PHASE,
    "attack": dict(PHASE),
    "slower": {"http": 1.0, "websocket": 1.5},
    "memory_mib": {"before": 100.0, "attack": 400.0, "after": 110.0},
    "held": {"before": {"tasks": 5}, "after": {"tasks": 5}},
}


@pytest.mark.parametrize(
    ("where", "value", "complaint"),
    [
        (("attack", "failed"), {"status 503": 1}, "victims failed: {'status 503': 1}"),
        (("attack", "gap_ms"), 101.0, "a gap of 101 ms"),
        (("slower", "http"), 1.51, "http: the first chunk's p95 grew 1.51 times"),
        (("slower", "websocket"), None, "websocket: the first chunk's p95 was never heard"),
        (("memory_mib", "after"), 111.0, "memory was 100 MiB, is 111 MiB"),
        (("held", "after"), {"tasks": 6}, "tasks was 5, is 6"),
    ],
)
def test_each_bar_that_is_broken_is_named(where: tuple[str, str], value: object, complaint: str) -> None:
    assert wrong(FINE) == []
    found = copy.deepcopy(FINE)
    found[where[0]][where[1]] = value
    assert [complaint in one for one in wrong(found)] == [True], wrong(found)
