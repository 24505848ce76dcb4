"""The shell around a talker decoder: what comes out, and when."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from megatalker.checkpoint.config import ModelConfig
from megatalker.errors import InvalidRequestError, MalformedResultError
from megatalker.interfaces import (
    Frame,
    FrameLogits,
)
from megatalker.plugins.checked import CheckedTalker
from scripted_talker import Scripted, begin

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
        (lambda frames: [frames[0], replace(frames[1], codes=(2**70, *cut(frames[1])[1:]))], f"code 0 is {2**70}"),
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
    """Applies from the first such answer on, so that the caller's other work is not delayed."""
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
