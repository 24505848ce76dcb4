"""The shell around a talker decoder: what goes in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import ModelConfig
from megatalker.errors import CapacityError, InvalidRequestError, MalformedResultError, UnsupportedError
from megatalker.interfaces import (
    AVAILABLE,
    BackendSettings,
    DecodeStep,
    Frame,
    Limit,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
)
from megatalker.plugins.checked import CheckedTalker, load_talker
from scripted_talker import ABLE, Scripted, begin

# --- facts


def load(config: ModelConfig, checkpoint: Checkpoint, loaded: Any) -> CheckedTalker:
    spec = TalkerBackend(
        name="scripted",
        summary="s",
        api_version=2,
        capabilities=ABLE,
        probe=lambda *_: AVAILABLE,
        load=lambda *_: loaded,
    )
    return load_talker(spec, checkpoint, LoadContext(torch.device("cpu"), torch.float32, BackendSettings()))


def test_limits_are_numbers_or_none(config: ModelConfig, tiny_custom_voice: Checkpoint) -> None:
    stated = load(config, tiny_custom_voice, Scripted(config))
    assert (stated.capabilities, stated.max_streams, stated.max_positions) == (ABLE, 2, 5)
    unlimited = Scripted(config, replace(ABLE, max_streams=Limit.NONE, max_positions=Limit.NONE))
    found = load(config, tiny_custom_voice, unlimited)
    assert (found.max_streams, found.max_positions) == (None, config.talker.max_positions)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"max_streams": Limit.UNKNOWN},
            "max_streams of the loaded instance is <Limit.UNKNOWN.* from 1 on or Limit.NON",
        ),
        ({"max_streams": 0}, "max_streams of the loaded instance is 0"),
        ({"max_streams": True}, "is True"),
        ({"max_positions": 1}, "max_positions of the loaded instance is 1, expected an integer from 2 on"),
        ({"max_positions": None}, "is None"),
    ],
)
def test_a_loaded_instance_states_its_limits(
    config: ModelConfig, tiny_custom_voice: Checkpoint, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(MalformedResultError, match=complaint):
        load(config, tiny_custom_voice, Scripted(config, replace(ABLE, **changes)))


def test_what_was_loaded_is_a_decoder_with_capabilities(config: ModelConfig, tiny_custom_voice: Checkpoint) -> None:
    with pytest.raises(MalformedResultError, match="what the backend loaded is dict, expected TalkerDecoder"):
        load(config, tiny_custom_voice, {})
    with pytest.raises(MalformedResultError, match="is dict, expected TalkerCapabilities"):
        load(config, tiny_custom_voice, Scripted(config, {}))  # type: ignore[arg-type]


def test_the_rest_is_passed_on(talker: CheckedTalker, inner: Scripted) -> None:
    talker.warmup()
    talker.close()
    assert inner.calls == ["warmup", "close"]


# --- prompts


@pytest.mark.parametrize("rows", [0, 1])
def test_a_prompt_has_at_least_two_rows(talker: CheckedTalker, hidden: int, rows: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"embeds is float32 \[{rows}, {hidden}\], expected .*{hidden}"):
        begin(talker, hidden, rows)


@pytest.mark.parametrize(
    "spoil", [lambda e: e[:, 1:], lambda e: e[None], lambda e: e.long(), lambda e: e[0], lambda e: e[0, 0]]
)
def test_a_malformed_prompt_is_described_and_no_other_begins(
    talker: CheckedTalker, inner: Scripted, hidden: int, spoil: Callable[[Tensor], Tensor]
) -> None:
    good = torch.zeros(3, hidden)
    for _ in range(3):  # one row held for each refusal would run out here
        with pytest.raises(InvalidRequestError, match=r"embeds is .* expected floating point"):
            talker.prefill([StreamRequest(good), StreamRequest(spoil(good))])
    assert inner.calls == []
    assert len(talker.prefill([StreamRequest(good), StreamRequest(good)])) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_prompt_is_finite(talker: CheckedTalker, inner: Scripted, hidden: int, value: float) -> None:
    rows = torch.zeros(3, hidden)
    rows[1, 2] = value
    with pytest.raises(InvalidRequestError, match="embeds holds NaN or infinity"):
        talker.prefill([StreamRequest(rows)])
    assert inner.calls == []


@pytest.mark.parametrize("code", [-1, 1.5, "eos"])
def test_history_ids_lie_in_the_vocabulary(talker: CheckedTalker, inner: Scripted, hidden: int, code: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"history: id .* expected 0 to"):
        talker.prefill([StreamRequest(torch.zeros(2, hidden), history=(0, code))])
    assert inner.calls == []


def test_history_may_hold_the_last_id_but_not_the_next(talker: CheckedTalker, config: ModelConfig) -> None:
    rows, size = torch.zeros(2, config.talker.hidden_size), config.talker.vocab_size
    talker.prefill([StreamRequest(rows, history=(size - 1,))])
    with pytest.raises(InvalidRequestError, match=f"id {size} "):
        talker.prefill([StreamRequest(rows, history=(size,))])


def test_a_continuation_names_its_frames_alike(talker: CheckedTalker, inner: Scripted, config: ModelConfig) -> None:
    hidden, groups = config.talker.hidden_size, config.num_code_groups
    rows, codes, text = torch.zeros(4, hidden), torch.ones(2, groups, dtype=torch.int64), torch.zeros(2, hidden)
    for wrong in ((codes, None), (None, text), (codes[:1], text), (codes, text[:, 1:]), (codes[:, 1:], text)):
        with pytest.raises(InvalidRequestError, match="expected both or neither, of the 2 frames of history"):
            talker.prefill([StreamRequest(rows, history=(1, 1), codes=wrong[0], text=wrong[1])])
    with pytest.raises(InvalidRequestError, match="history differs from the first column of codes"):
        talker.prefill([StreamRequest(rows, history=(1, 2), codes=codes, text=text)])
    assert inner.calls == []
    assert talker.prefill([StreamRequest(rows, history=(1, 1), codes=codes, text=text)])


def test_limits_of_streams_and_positions(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    with pytest.raises(CapacityError, match="6 rows, this decoder holds 5"):
        begin(talker, hidden, 6)
    step = begin(talker, hidden, 4)
    talker.decode([step])()
    with pytest.raises(CapacityError, match="used its 5 positions"):
        talker.decode([step])
    with pytest.raises(CapacityError, match="1 of 2 streams of this decoder are in use and 2 more"):
        talker.prefill([StreamRequest(torch.zeros(2, hidden))] * 2)
    begin(talker, hidden)
    with pytest.raises(CapacityError, match="2 of 2 streams"):
        begin(talker, hidden)
    talker.release(step.stream)
    begin(talker, hidden)
    assert inner.calls == ["prefill", "decode", "prefill", "release", "prefill"]


def test_without_limits_of_its_own_the_checkpoint_sets_the_positions(config: ModelConfig) -> None:
    talker = CheckedTalker(Scripted(config, replace(ABLE, max_streams=Limit.NONE, max_positions=Limit.NONE)), config)
    rows = torch.zeros(2, config.talker.hidden_size)
    assert len(talker.prefill([StreamRequest(rows)] * 100)) == 100
    with pytest.raises(CapacityError, match=f"holds {config.talker.max_positions} positions"):
        talker.prefill([StreamRequest(rows[:1].expand(config.talker.max_positions + 1, -1))])


@pytest.mark.parametrize(
    ("handles", "complaint"),
    [
        ([1], "1 handles for 2 requests"),
        ((1, 2), "tuple for 2 requests"),
        ([1, "2"], "returned '2', expected a stream handle"),
        ([1, True], "returned True"),
        ([1, 1], "handle 1 after 1"),
        ([2, 1], "handle 1 after 2; expected a larger one"),
        ([0, 1], "handle 0 after 0"),
    ],
)
def test_a_handle_is_an_integer_and_new(
    talker: CheckedTalker, inner: Scripted, hidden: int, handles: Any, complaint: str
) -> None:
    inner.handles = handles
    with pytest.raises(MalformedResultError, match=complaint):
        talker.prefill([StreamRequest(torch.zeros(2, hidden))] * 2)


def test_the_handle_of_a_released_stream_is_not_given_out_again(
    talker: CheckedTalker, inner: Scripted, hidden: int
) -> None:
    inner.handles = [4]
    talker.release(begin(talker, hidden).stream)
    with pytest.raises(MalformedResultError, match="handle 4 after 4"):
        begin(talker, hidden)


def test_errors_of_the_backend_pass_and_leave_nothing(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    def refuse(requests: object) -> list[StreamHandle]:
        raise CapacityError("no pages")

    prefill, inner.prefill = inner.prefill, refuse  # type: ignore[method-assign]
    with pytest.raises(CapacityError, match="no pages"):
        begin(talker, hidden)
    inner.prefill = prefill  # type: ignore[method-assign]
    assert len(talker.prefill([StreamRequest(torch.zeros(2, hidden))] * 2)) == 2


# --- steps


def test_unknown_released_and_ended_streams_are_told_apart(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    released, ended = begin(talker, hidden), begin(talker, hidden)
    talker.release(released.stream)
    inner.ends = True
    talker.decode([ended])()
    inner.calls.clear()
    unknown = replace(ended, stream=StreamHandle(99))
    for step, complaint in ((released, "was released"), (ended, "has ended"), (unknown, "99 is unknown")):
        with pytest.raises(InvalidRequestError, match=complaint):
            talker.decode([step])
    for step, complaint in ((released, "was released"), (unknown, "99 is unknown")):
        with pytest.raises(InvalidRequestError, match=complaint):
            talker.release(step.stream)
    assert inner.calls == []
    talker.release(ended.stream)
    assert inner.calls == ["release"]


@pytest.mark.parametrize("spoil", [lambda t: t[1:], lambda t: t[None], lambda t: t.int()])
def test_a_malformed_text_row_is_described(
    talker: CheckedTalker, inner: Scripted, hidden: int, spoil: Callable[[Tensor], Tensor]
) -> None:
    good, bad = begin(talker, hidden), begin(talker, hidden)
    with pytest.raises(InvalidRequestError, match=rf"text row of stream 2 is .* expected floating point \[{hidden}\]"):
        talker.decode([good, replace(bad, text=spoil(bad.text))])
    assert "decode" not in inner.calls


def test_a_text_row_is_finite(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    step = begin(talker, hidden)
    step.text[-1] = float("inf")
    with pytest.raises(InvalidRequestError, match="text row of stream 1 holds NaN or infinity"):
        talker.decode([step])
    assert "decode" not in inner.calls


def test_values_on_a_device_are_taken_on_trust(talker: CheckedTalker, config: ModelConfig) -> None:
    """Looking at them would wait for the device; ``meta`` tensors have no values to look at."""
    rows = torch.zeros(2, config.talker.hidden_size, device="meta")
    (stream,) = talker.prefill([StreamRequest(rows)])
    talker.decode([DecodeStep(stream, rows[0])])()


def test_a_stream_stands_once_in_a_call_and_an_empty_call_asks_nothing(
    talker: CheckedTalker, inner: Scripted, hidden: int
) -> None:
    step = begin(talker, hidden)
    with pytest.raises(InvalidRequestError, match="stands twice"):
        talker.decode([step, step])
    assert talker.decode([])() == []
    assert talker.prefill([]) == []
    assert inner.calls == ["prefill"]


def test_forced_codes_are_one_id_of_each_group(talker: CheckedTalker, inner: Scripted, config: ModelConfig) -> None:
    step = begin(talker, config.talker.hidden_size)
    groups, last = config.num_code_groups, config.predictor.vocab_size - 1

    def force(*forced: object) -> Frame:
        return talker.decode([replace(step, forced=forced)])()[0]  # type: ignore[arg-type]

    assert force(config.first_suppressed_id - 1, *[last] * (groups - 1)).codes is not None
    inner.calls.clear()
    with pytest.raises(InvalidRequestError, match=f"{groups - 1} forced codes, expected {groups}"):
        force(*[0] * (groups - 1))
    with pytest.raises(InvalidRequestError, match=f"{groups + 1} forced codes, expected {groups}"):
        force(*[0] * (groups + 1))
    for first in (-1, config.first_suppressed_id, config.talker.vocab_size):
        with pytest.raises(InvalidRequestError, match="first forced code: id"):
            force(first, *[0] * (groups - 1))
    for rest in (-1, last + 1):
        with pytest.raises(InvalidRequestError, match=f"after the first: id {rest} .* expected 0 to {last}"):
            force(*[0] * (groups - 1), rest)
    assert inner.calls == []
    assert force(config.codec_eos_id, *[last] * (groups - 1)).ended


def test_forcing_and_logits_need_the_capability(config: ModelConfig) -> None:
    inner = Scripted(config, replace(ABLE, forced_codes=False))
    talker = CheckedTalker(inner, config)
    step = begin(talker, config.talker.hidden_size)
    with pytest.raises(UnsupportedError, match="do not list forced_codes"):
        talker.decode([replace(step, forced=[1] * config.num_code_groups)])
    with pytest.raises(UnsupportedError, match="do not list forced_codes"):
        talker.decode([step], return_logits=True)
    assert inner.calls == ["prefill"]
