"""An early warm-up of ``compiled``: for one stream, while another process compiles for more."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, LoadContext, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_backends.compiled import ahead
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.runner import DirectRunner
from megatalker_backends.compiled.settings import CompiledSettings
from megatalker_backends.compiler import CompilerError
from waiting import eventually

CPU = torch.device("cpu")
Load = Callable[..., CheckedTalker]
SUCCEEDS = "pass"
FAILS = "raise SystemExit('there is no room')"
HANGS = "import time; time.sleep(1000)"


@pytest.fixture
def load(tiny_1b7: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads and warms up, with units that are not compiled, and a program in place of the process that compiles."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: partial(function))
    start, loaded = subprocess.Popen, []

    def warm(program: str, *, early: bool = True, **settings: Any) -> CheckedTalker:
        command = [sys.executable, "-c", program]
        monkeypatch.setattr(ahead.subprocess, "Popen", lambda _, **files: start(command, **files))
        own = CompiledSettings(compile="on", max_positions=64, **settings)
        decoder = CompiledDecoder(tiny_1b7, LoadContext(CPU, torch.float32, own, early=early))
        loaded.append(decoder)
        decoder.warmup()
        return CheckedTalker(decoder, tiny_1b7.config)

    yield warm
    for decoder in loaded:
        if "_model" in vars(decoder):  # not closed yet
            decoder.close()


def decoder_of(talker: CheckedTalker) -> CompiledDecoder:
    assert isinstance(talker.decoder, CompiledDecoder)
    return talker.decoder


def sizes(talker: CheckedTalker) -> list[int]:
    runner = decoder_of(talker)._runner
    assert isinstance(runner, DirectRunner)
    return sorted(runner._units)


def together(talker: CheckedTalker) -> list[tuple[int, ...] | None]:
    """Three frames of each of five streams that share every call."""
    hidden = decoder_of(talker)._model.config.talker.hidden_size
    rows = torch.randn(5, hidden, generator=torch.Generator().manual_seed(1))
    streams = talker.prefill([StreamRequest(rows, SamplingParams(seed=seed, min_new_tokens=9)) for seed in range(5)])
    steps = [DecodeStep(stream, rows[0]) for stream in streams]
    codes = [frame.codes for _ in range(3) for frame in talker.decode(steps)()]
    for stream in streams:
        talker.release(stream)
    return codes


def test_one_stream_is_served_first_and_the_codes_stay_the_same(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    expected = together(load(HANGS, early=False))
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="megatalker_backends"):
        talker = load(SUCCEEDS)
    assert caplog.messages[0] == "compiled: warming up 1 of 1: frames of 1 streams"
    assert "warm for one stream; frames of 4 streams are compiled by process" in caplog.messages[1]
    assert (sizes(talker), together(talker)) == ([1], expected)
    said: list[str | None] = []

    def prepared() -> bool:
        said.append(talker.prepare())
        assert together(talker) == expected, "a unit at a time"
        return said[-1] is None

    with caplog.at_level(logging.INFO, logger="megatalker_backends"):
        eventually(prepared, "the process has ended")
    assert len(said) > 4
    assert set(said[:-1]) == {"frames of 4 streams"}
    assert caplog.messages[-1] == "compiled: warm for frames of 4 streams"
    assert sizes(talker) == [1, 4]
    assert talker.prepare() is None


def test_a_process_that_fails_is_quoted_and_not_asked_again(load: Load) -> None:
    talker = load(FAILS)
    with pytest.raises(CompilerError, match=r"ended with status 1 and said: there is no room"):
        eventually(lambda: talker.prepare() is None, "it fails")
    assert talker.prepare() is None
    assert (sizes(talker), len(together(talker))) == ([1], 15)


def test_closing_ends_the_process(load: Load) -> None:
    decoder = decoder_of(load(HANGS))
    later = decoder._later
    assert later is not None
    decoder.close()
    assert later._process.returncode is not None


@pytest.mark.parametrize("why", ["one stream", "no cache"])
def test_everything_is_compiled_at_once_where_nothing_can_be_left(
    load: Load, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no cache":
        monkeypatch.setattr("torch._inductor.config.force_disable_caches", True)
    talker = load(HANGS, max_streams=1 if why == "one stream" else 8)
    assert sizes(talker) == ([1] if why == "one stream" else [1, 4])
    assert talker.prepare() is None


def test_the_process_compiles_the_same_units_for_the_same_state(
    tiny_1b7: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, lower, compile_units = Mock(**{"return_value.pid": 1}), Mock(), Mock()
    monkeypatch.setattr(ahead.subprocess, "Popen", start)
    monkeypatch.setattr(os, "nice", lower)
    monkeypatch.setattr(ahead, "compile_units", compile_units)
    own = CompiledSettings(max_positions=100, max_streams=6)
    model = CompiledDecoder(tiny_1b7, LoadContext(CPU, torch.bfloat16, own))._model
    later = ahead.LaterUnits(model, tiny_1b7.folder, 4)
    *_, module, task = start.call_args.args[0]
    assert module == "megatalker_backends.compiled.ahead"
    ahead.main(task)
    later.stop()
    again, batch = compile_units.call_args.args
    assert batch == [4]
    lower.assert_called_once_with(ahead.LOWEST_PRIORITY)
    for name in ("cache_positions", "scratch_row", "dtype", "device"):
        assert getattr(again, name) == getattr(model, name)
    assert not again.pending.logits.is_inference(), "tensors of another kind would be compiled for anew"
