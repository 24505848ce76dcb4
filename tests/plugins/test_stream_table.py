import pytest
import torch

from megatalker.errors import CapacityError
from megatalker.interfaces import StreamRequest
from megatalker.plugins.stream_table import StreamTable, TableEntry


def request(rows: int = 2, history: tuple[int, ...] = ()) -> StreamRequest:
    return StreamRequest(torch.zeros(rows, 8), history=history)


def admit(table: StreamTable, *requests: StreamRequest) -> list[TableEntry]:
    with table.admit(requests) as entries:
        return entries


def test_the_lowest_free_row_is_taken_and_handles_ascend() -> None:
    table = StreamTable(3)
    first, second = admit(table, request(), request())
    assert (first.row, second.row) == (0, 1)
    assert table.release(first.handle) is first
    third, fourth = admit(table, request(), request())
    assert (third.row, fourth.row) == (0, 2)
    assert first.handle < second.handle < third.handle < fourth.handle
    assert list(table) == [second.handle, third.handle, fourth.handle]
    assert len(table) == 3


def test_an_entry_tells_how_far_its_stream_has_come() -> None:
    table = StreamTable(1)
    (entry,) = admit(table, request(5, history=(7, 7, 7)))
    assert (entry.positions, entry.frames) == (5, 3)
    entry.advance()
    assert table[entry.handle] is entry
    assert (entry.positions, entry.frames) == (6, 4)


def test_a_failed_prefill_holds_nothing_of_any_request() -> None:
    table = StreamTable(2)
    with pytest.raises(RuntimeError, match="boom"), table.admit([request(), request()]):
        raise RuntimeError("boom")
    assert len(table) == 0
    assert {entry.row for entry in admit(table, request(), request())} == {0, 1}


def test_more_requests_than_free_rows_are_refused_together() -> None:
    table = StreamTable(2)
    (kept,) = admit(table, request())
    with pytest.raises(CapacityError, match="2 rows are needed and 1 are free"):
        admit(table, request(), request())
    assert list(table) == [kept.handle]


def test_a_released_stream_stands_here_no_longer() -> None:
    table = StreamTable(1)
    (entry,) = admit(table, request())
    table.release(entry.handle)
    with pytest.raises(KeyError):
        table[entry.handle]
