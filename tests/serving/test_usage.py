"""Counts of keys that several processes share."""

from pathlib import Path

import pytest

from megatalker.serving.server.usage import KeyUsage


def test_streams_of_all_processes_count_and_those_of_a_dead_one_do_not(tmp_path: Path) -> None:
    one, other = (KeyUsage(tmp_path / "usage", process) for process in (1, 2))
    assert one.take_stream("anna", 2)
    assert other.take_stream("anna", 2)
    assert not one.take_stream("anna", 2)
    assert one.take_stream("bert", 2), "each key has its own"
    assert other.take_stream("anna", None), "without a limit they count, too"
    other.give_stream_back("anna")
    assert not one.take_stream("anna", 2)
    one.forget_process(2)
    assert one.take_stream("anna", 2)
    assert not other.take_stream("anna", 2)
    one.close()
    other.close()


def test_requests_of_all_processes_are_those_of_one_minute(tmp_path: Path) -> None:
    now = 0.0
    one, other = (KeyUsage(tmp_path / "usage", process, clock=lambda: now) for process in (1, 2))
    assert [usage.take_request("anna", 3) for usage in (one, other, one)] == [0, 0, 0]
    assert other.take_request("anna", 3) == pytest.approx(20)
    now = 20.0
    assert other.take_request("anna", 3) == 0
    assert one.take_request("anna", 3) == pytest.approx(20)
    assert one.take_request("anna", 60) == pytest.approx(1), "a higher limit fills up faster"


def test_a_process_that_stands_still_in_a_count_closes_the_server_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = (KeyUsage(tmp_path / "usage", process) for process in (1, 2))
    one._db.execute("BEGIN IMMEDIATE")
    assert other.take_stream("anna", 1)
    assert other.take_request("anna", 1) == 0
    assert "cannot be counted: database is locked" in caplog.text
    one._db.execute("ROLLBACK")
    assert [other.take_stream("anna", 1) for _ in range(2)] == [True, False], "and it counts again"
