"""Changes to Python's interpreter in a process that lives for its engine."""

import gc

from megatalker.engine.interpreter import spare_what_is_loaded


def test_full_collections_do_not_pause_those_who_speak() -> None:
    spare_what_is_loaded()
    full = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(400_000)]  # what hundreds of streams come to hold
    assert gc.get_stats()[2]["collections"] == full
    assert gc.get_stats()[1]["collections"] > len(kept) / 1e5, "younger objects are looked at"
