"""The shell around a talker decoder: what it lets through in either direction."""

from collections.abc import Callable, Sequence
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
    FrameLogits,
    Limit,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins.checked import CheckedTalker, load_talker

ABLE = TalkerCapabilities(
    frozenset({"cpu"}), frozenset({torch.float32}), max_streams=2, max_positions=5, forced_codes=True
)


class Scripted(TalkerDecoder):
    """Emits zeros, or what it is forced to, or end-of-speech; notes every call that reaches it."""

    def __init__(self, config: ModelConfig, capabilities: TalkerCapabilities = ABLE) -> None:
        self.config, self.stated = config, capabilities
        self.calls: list[str] = []
        self.ends = False
        self.handles: Any = None
        """What prefill returns instead of new handles."""
        self.answer: Callable[[list[Frame]], Any] = lambda frames: frames
        """Makes what decode returns of the right frames."""
        self._issued = 0

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self.stated

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        self.calls.append("prefill")
        if self.handles is not None:
            return self.handles
        self._issued += len(requests)
        return [StreamHandle(self._issued - index) for index in reversed(range(len(requests)))]

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Any:
        self.calls.append("decode")
        return self.answer([self._frame(step, return_logits) for step in steps])

    def _frame(self, step: DecodeStep, return_logits: bool) -> Frame:
        config = self.config
        codes = None if self.ends else tuple(step.forced or [0] * config.num_code_groups)
        if codes is not None and codes[0] == config.codec_eos_id:
            codes = None
        rest = torch.zeros(0 if codes is None else config.num_code_groups - 1, config.predictor.vocab_size)
        logits = FrameLogits(torch.zeros(config.talker.vocab_size), rest) if return_logits else None
        return Frame(step.stream, codes, logits)

    def release(self, stream: StreamHandle) -> None:
        self.calls.append("release")

    def warmup(self) -> None:
        self.calls.append("warmup")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def config(tiny_custom_voice: Checkpoint) -> ModelConfig:
    return tiny_custom_voice.config


@pytest.fixture
def inner(config: ModelConfig) -> Scripted:
    return Scripted(config)


@pytest.fixture
def talker(inner: Scripted, config: ModelConfig) -> CheckedTalker:
    return CheckedTalker(inner, config)


@pytest.fixture
def hidden(config: ModelConfig) -> int:
    return config.talker.hidden_size


def begin(talker: CheckedTalker, hidden: int, rows: int = 2) -> DecodeStep:
    (stream,) = talker.prefill([StreamRequest(torch.zeros(rows, hidden))])
    return DecodeStep(stream, torch.zeros(hidden))


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


# --- frames


def cut(frame: Frame) -> tuple[int, ...]:
    assert frame.codes is not None
    return frame.codes


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda frames: None, "returned NoneType for 2 steps"),
        (lambda frames: frames[:1], "returned 1 frames for 2 steps"),
        (lambda frames: tuple(frames), "returned tuple"),
        (lambda frames: frames[::-1], "result 0 is not the frame of stream 1"),
        (lambda frames: [frames[0], cut(frames[1])], "result 1 is not the frame of stream 2"),
        (lambda frames: [frames[0], replace(frames[1], codes=cut(frames[1])[1:])], "result 1: 15 codes"),
        (lambda frames: [frames[0], replace(frames[1], codes=list(cut(frames[1])))], "codes as list, expected a tuple"),
        (lambda frames: [frames[0], replace(frames[1], codes=(10**6, *cut(frames[1])[1:]))], "code 0 is 1000000"),
        (lambda frames: [frames[0], replace(frames[1], codes=(*cut(frames[1])[:-1], -1))], "code 15 is -1"),
        (lambda frames: [frames[0], replace(frames[1], codes=(0.0, *cut(frames[1])[1:]))], "code 0 is 0.0"),
        (lambda frames: [frames[0], replace(frames[1], codes=(True, *cut(frames[1])[1:]))], "code 0 is True"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_malformed_frames_are_a_fault_and_nobody_advances(
    talker: CheckedTalker, inner: Scripted, hidden: int, spoil: Callable[[list[Frame]], Any], complaint: str, late: bool
) -> None:
    steps = [begin(talker, hidden, rows=4), begin(talker, hidden, rows=4)]
    inner.answer = (lambda frames: lambda: spoil(frames)) if late else spoil
    with pytest.raises(MalformedResultError, match=complaint):
        talker.decode(steps)()
    inner.answer = lambda frames: frames
    assert len(talker.decode(steps)()) == 2, "their last position was not used"


def test_codes_of_an_end_of_speech_row_are_a_fault(talker: CheckedTalker, inner: Scripted, config: ModelConfig) -> None:
    step = begin(talker, config.talker.hidden_size)
    inner.answer = lambda frames: [replace(frames[0], codes=(config.codec_eos_id, *cut(frames[0])[1:]))]
    with pytest.raises(MalformedResultError, match=f"code 0 is {config.codec_eos_id}"):
        talker.decode([step])()


@pytest.mark.parametrize("ends", [False, True])
def test_forced_codes_come_out(talker: CheckedTalker, inner: Scripted, config: ModelConfig, ends: bool) -> None:
    step = begin(talker, config.talker.hidden_size)
    first = config.codec_eos_id if ends else 3
    inner.answer = lambda frames: [replace(frames[0], codes=(1,) * config.num_code_groups)]
    with pytest.raises(MalformedResultError, match="expected the forced"):
        talker.decode([replace(step, forced=[first] * config.num_code_groups if not ends else [first] + [0] * 15)])()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda logits: None, "no logits, which return_logits asked for"),
        (lambda logits: replace(logits, talker=logits.talker[1:]), "talker logits are float32"),
        (lambda logits: replace(logits, talker=logits.talker.double()), "talker logits are float64"),
        (lambda logits: replace(logits, predictor=logits.predictor[:-1]), r"predictor logits are float32 \[14, "),
        (lambda logits: replace(logits, predictor=None), "predictor logits are NoneType"),
    ],
)
def test_logits_asked_for_are_there(
    talker: CheckedTalker, inner: Scripted, hidden: int, spoil: Callable[[FrameLogits], Any], complaint: str
) -> None:
    step = begin(talker, hidden)
    inner.answer = lambda frames: [replace(frames[0], logits=spoil(frames[0].logits))]  # type: ignore[arg-type]
    with pytest.raises(MalformedResultError, match=complaint):
        talker.decode([step], return_logits=True)()


def test_an_ended_stream_has_no_predictor_logits(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    step = begin(talker, hidden)
    inner.ends = True
    inner.answer = lambda frames: [replace(frames[0], logits=FrameLogits(*full))]
    full = (torch.zeros(inner.config.talker.vocab_size), torch.zeros(15, inner.config.predictor.vocab_size))
    with pytest.raises(MalformedResultError, match=r"predictor logits are float32 \[15, .* expected float32 \[0, "):
        talker.decode([step], return_logits=True)()


# --- when frames are taken


def test_a_device_that_works_by_itself_is_started_at_once(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    inner.answer = lambda frames: lambda: inner.calls.append("take") or frames
    step = begin(talker, hidden)
    for _ in range(2):
        inner.calls.clear()
        take = talker.decode([step])
        assert inner.calls == ["decode"]
        take()
        assert inner.calls == ["decode", "take"]


def test_a_backend_that_works_in_the_call_is_called_when_its_frames_are_waited_for(
    talker: CheckedTalker, inner: Scripted, hidden: int
) -> None:
    """From the first such answer on: whatever the caller does meanwhile does not wait for it."""
    step = begin(talker, hidden)
    talker.decode([step])()
    inner.calls.clear()
    take = talker.decode([step])
    assert inner.calls == []
    take()
    assert inner.calls == ["decode"]


def test_frames_are_taken_once_and_before_anything_else(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    step = begin(talker, hidden)
    take = talker.decode([step])
    others: list[Callable[[], object]] = [
        lambda: talker.decode([step]),
        lambda: begin(talker, hidden),
        lambda: talker.release(step.stream),
        talker.warmup,
    ]
    for call in others:
        with pytest.raises(InvalidRequestError, match="frames are under way"):
            call()
    take()
    with pytest.raises(InvalidRequestError, match="taken before"):
        take()
    talker.decode([step])
    talker.close()
    assert inner.calls == ["prefill", "decode", "close"]


def test_a_frame_that_fails_is_over(talker: CheckedTalker, inner: Scripted, hidden: int) -> None:
    def fail() -> list[Frame]:
        raise RuntimeError("device lost")

    step = begin(talker, hidden)
    inner.answer = lambda frames: fail
    with pytest.raises(RuntimeError, match="device lost"):
        talker.decode([step])()
    talker.release(step.stream)
