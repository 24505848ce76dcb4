"""Changes to Python's interpreter in a process that lives for its engine."""

import gc
from collections.abc import Iterator

import pytest

from megatalker.engine.interpreter import collect_rarely, spare_what_is_loaded


@pytest.fixture(autouse=True)
def usual_thresholds() -> Iterator[None]:
    """Give the other tests of this process the thresholds that they had."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


class Cycle:
    """Garbage that nothing but a collection frees."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


def test_full_collections_do_not_pause_those_who_speak() -> None:
    spare_what_is_loaded()
    collect_rarely()
    full = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(400_000)]  # what hundreds of streams come to hold
    assert gc.get_stats()[2]["collections"] == full
    assert gc.get_stats()[1]["collections"] > len(kept) / 1e5, "younger objects are looked at"


def test_garbage_of_connections_does_not_pile_up_where_no_engine_lives() -> None:
    """A connection lives through collections of younger objects and is then part of a cycle."""
    spare_what_is_loaded()
    open_connections: list[Cycle] = []
    most = 0
    for _ in range(400_000):
        open_connections.append(Cycle())
        if len(open_connections) > 8_000:
            del open_connections[:4_000]
        most = max(most, Cycle.alive - len(open_connections))
    assert most < 150_000
    del open_connections
    gc.collect()
