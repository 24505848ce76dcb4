from dataclasses import replace

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.interfaces import DecodeStep, StreamHandle, StreamRequest
from megatalker_backends.stream_table import StreamTable


@pytest.fixture
def table(tiny_custom_voice: Checkpoint) -> StreamTable:
    return StreamTable(tiny_custom_voice.config, max_streams=2, max_positions=5)


@pytest.fixture
def hidden(tiny_custom_voice: Checkpoint) -> int:
    return tiny_custom_voice.config.talker.hidden_size


def admit(table: StreamTable, embeds: torch.Tensor, history: tuple[int, ...] = ()) -> StreamHandle:
    with table.admit(StreamRequest(embeds, history=history)) as (stream, _):
        return stream


def step_of(table: StreamTable, hidden: int) -> DecodeStep:
    return DecodeStep(admit(table, torch.zeros(2, hidden)), torch.zeros(hidden))


def test_the_lowest_free_row_is_taken_and_handles_are_never_reused(table: StreamTable, hidden: int) -> None:
    first, second = (admit(table, torch.zeros(2, hidden)) for _ in range(2))
    assert (table.row(first), table.row(second)) == (0, 1)
    assert table.release(first) == 0
    third = admit(table, torch.zeros(2, hidden))
    assert table.row(third) == 0
    assert len({first, second, third}) == 3
    assert len(table) == 2


def test_a_failed_prefill_holds_nothing(table: StreamTable, hidden: int) -> None:
    with pytest.raises(RuntimeError, match="boom"), table.admit(StreamRequest(torch.zeros(2, hidden))):
        raise RuntimeError("boom")
    assert len(table) == 0
    assert len({table.row(admit(table, torch.zeros(2, hidden))) for _ in range(2)}) == 2


@pytest.mark.parametrize("rows", [0, 1])
def test_a_prompt_has_at_least_two_rows(table: StreamTable, hidden: int, rows: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"embeds is float32 \[{rows}, {hidden}\], expected .*{hidden}"):
        admit(table, torch.zeros(rows, hidden))


@pytest.mark.parametrize("spoil", [lambda e: e[:, 1:], lambda e: e[None], lambda e: e.long(), lambda e: e[0]])
def test_a_malformed_prompt_is_described(table: StreamTable, hidden: int, spoil: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"embeds is .* expected floating point"):
        admit(table, spoil(torch.zeros(3, hidden)))  # type: ignore[operator]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_prompt_is_finite(table: StreamTable, hidden: int, value: float) -> None:
    with pytest.raises(InvalidRequestError, match="NaN or infinity"):
        admit(table, torch.full((2, hidden), value))


@pytest.mark.parametrize("code", [-1, 1.5, "eos"])
def test_history_ids_lie_in_the_vocabulary(table: StreamTable, hidden: int, code: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"history: id .* expected 0 to"):
        admit(table, torch.zeros(2, hidden), (0, code))
    assert len(table) == 0


def test_history_may_hold_the_last_id_but_not_the_next(table: StreamTable, tiny_custom_voice: Checkpoint) -> None:
    talker = tiny_custom_voice.config.talker
    admit(table, torch.zeros(2, talker.hidden_size), (talker.vocab_size - 1,))
    with pytest.raises(InvalidRequestError, match=f"id {talker.vocab_size} "):
        admit(table, torch.zeros(2, talker.hidden_size), (talker.vocab_size,))


def test_limits_of_rows_and_positions(table: StreamTable, hidden: int) -> None:
    with pytest.raises(CapacityError, match="6 rows, this decoder holds 5"):
        admit(table, torch.zeros(6, hidden))
    stream = admit(table, torch.zeros(4, hidden))
    step = DecodeStep(stream, torch.zeros(hidden))
    assert table.check_steps([step]) == [0]
    table.advance(stream)
    assert table.positions(stream) == 5
    with pytest.raises(CapacityError, match="used its 5 positions"):
        table.check_steps([step])
    admit(table, torch.zeros(2, hidden))
    with pytest.raises(CapacityError, match="all 2 streams"):
        admit(table, torch.zeros(2, hidden))


def test_a_call_takes_at_most_one_step_for_each_row(table: StreamTable, hidden: int) -> None:
    step = step_of(table, hidden)
    with pytest.raises(CapacityError, match="3 steps in one call, this decoder takes 2"):
        table.check_steps([step] * 3)
    with pytest.raises(InvalidRequestError, match="stands twice"):
        table.check_steps([step] * 2)
    assert table.check_steps([]) == []


def test_unknown_released_and_ended_streams_are_told_apart(table: StreamTable, hidden: int) -> None:
    released, ended = step_of(table, hidden), step_of(table, hidden)
    table.release(released.stream)
    table.end(ended.stream)
    with pytest.raises(InvalidRequestError, match="was released"):
        table.check_steps([released])
    with pytest.raises(InvalidRequestError, match="was released"):
        table.release(released.stream)
    with pytest.raises(InvalidRequestError, match="has ended"):
        table.check_steps([ended])
    with pytest.raises(InvalidRequestError, match="99 is unknown"):
        table.check_steps([replace(ended, stream=StreamHandle(99))])
    assert table.release(ended.stream) == 1


@pytest.mark.parametrize("spoil", [lambda t: t[1:], lambda t: t[None], lambda t: t.int()])
def test_a_malformed_text_row_is_described(table: StreamTable, hidden: int, spoil: object) -> None:
    step = step_of(table, hidden)
    with pytest.raises(InvalidRequestError, match=rf"text row of stream 1 is .* expected floating point \[{hidden}\]"):
        table.check_steps([replace(step, text=spoil(step.text))])  # type: ignore[operator]


def test_a_text_row_is_finite(table: StreamTable, hidden: int) -> None:
    step = step_of(table, hidden)
    step.text[-1] = float("inf")
    with pytest.raises(InvalidRequestError, match="text row of stream 1 holds NaN or infinity"):
        table.check_steps([step])


def test_forced_codes_are_one_id_of_each_group(table: StreamTable, tiny_custom_voice: Checkpoint) -> None:
    config = tiny_custom_voice.config
    step = step_of(table, config.talker.hidden_size)
    groups, last = config.num_code_groups, config.predictor.vocab_size - 1

    def check(*forced: object) -> list[int]:
        return table.check_steps([replace(step, forced=forced)])  # type: ignore[arg-type]

    assert check(config.codec_eos_id, *[last] * (groups - 1)) == [0]
    with pytest.raises(InvalidRequestError, match=f"{groups - 1} forced codes, expected {groups}"):
        check(*[0] * (groups - 1))
    with pytest.raises(InvalidRequestError, match="first forced code: id"):
        check(config.talker.vocab_size, *[0] * (groups - 1))
    with pytest.raises(InvalidRequestError, match=f"after the first: id {last + 1} .* expected 0 to {last}"):
        check(0, *[last + 1] * (groups - 1))
