"""Machines on which ``torch.compile`` cannot work: ``compiled`` says so and runs uncompiled, an explicit wish fails."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import SettingsError
from megatalker.interfaces import DecodeStep, LoadContext, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.settings import CompiledSettings
from megatalker_backends.compiler import compiler_errors
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings

CPU = torch.device("cpu")
KEY = "backends.compiled.compile"
WARM_UP = """
import sys, torch
from megatalker import Checkpoint, LoadContext
from megatalker.errors import SettingsError
from megatalker_backends.compiled.decoder import CompiledDecoder
from megatalker_backends.compiled.settings import CompiledSettings
from megatalker_backends.streaming.codec import StreamingCodec
from megatalker_backends.streaming.settings import StreamingSettings

checkpoint = Checkpoint.open(sys.argv[1])
for load, settings in (
    (CompiledDecoder, CompiledSettings(compile="auto")),
    (CompiledDecoder, CompiledSettings(compile="on")),
    (StreamingCodec, StreamingSettings(compile=True)),
):
    try:
        load(checkpoint, LoadContext(torch.device("cpu"), torch.float32, settings)).warmup()
    except SettingsError as error:
        print("SettingsError:", error)
"""


def decoder_with(checkpoint: Checkpoint, compile_: Literal["auto", "on", "off"]) -> CompiledDecoder:
    return CompiledDecoder(checkpoint, LoadContext(CPU, torch.float32, CompiledSettings(compile=compile_)))


def spoken(decoder: CompiledDecoder) -> list[tuple[int, ...] | None]:
    """A few frames of one stream, seeded."""
    hidden = decoder._model.config.talker.hidden_size
    rows = torch.randn(5, hidden, generator=torch.Generator().manual_seed(1))
    talker = CheckedTalker(decoder, decoder._model.config)
    (stream,) = talker.prefill([StreamRequest(rows, SamplingParams(seed=3))])
    return [talker.decode([DecodeStep(stream, rows[0])])()[0].codes for _ in range(4)]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_without_a_compiler_it_runs_uncompiled_and_says_so_once(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = decoder_with(tiny_custom_voice, "off")
    plain.warmup()
    monkeypatch.setenv("CXX", "/nope")
    decoder = decoder_with(tiny_custom_voice, "auto")
    decoder.warmup()
    decoder.warmup()
    (warning,) = warnings_of(caplog)
    assert KEY in warning
    assert "there is no C++ compiler '/nope'" in warning
    assert spoken(decoder) == spoken(plain)
    with pytest.raises(SettingsError, match=rf"{KEY} is 'on', but there is no C\+\+ compiler '/nope'"):
        decoder_with(tiny_custom_voice, "on")


def test_the_compiler_is_the_one_that_torch_would_take(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "clang++"  # torch looks for g++ and nothing else on Linux, unless CXX says so
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(SettingsError, match=r"there is no C\+\+ compiler 'g\+\+'"):
        decoder_with(tiny_custom_voice, "on")


@pytest.mark.slow
def test_an_unwritable_cache_is_found_out_in_warm_up(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("")  # a file in the place of the folder, which stops even root
    ended = subprocess.run(  # a process of its own, which has compiled nothing yet
        [sys.executable, "-c", WARM_UP, str(tiny_custom_voice.folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count(f"{KEY} is 'auto', and torch.compile failed") == 1, ended.stderr
    assert str(cache) in ended.stderr
    on, codec = ended.stdout.splitlines()
    assert on.startswith(f"SettingsError: {KEY} is 'on', but torch.compile failed")
    assert codec.startswith("SettingsError: codecs.streaming.compile is true, but torch.compile failed")


def test_a_codec_that_shall_be_compiled_needs_a_compiler(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nope")
    with pytest.raises(SettingsError, match=r"codecs\.streaming\.compile is true, but there is no C\+\+ compiler"):
        StreamingCodec(tiny_custom_voice, LoadContext(CPU, torch.float32, StreamingSettings(compile=True)))


@pytest.fixture
def user_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a user without settings for the compiler."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_program_keeps_compiled_code_under_the_users_cache(user_cache: Path) -> None:
    with compiler_errors():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(user_cache / "megatalker" / "inductor")
    assert (user_cache / "megatalker" / "inductor").is_dir()


def test_the_users_own_choice_of_a_cache_stands(user_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere/else")
    with compiler_errors():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/somewhere/else"


def test_without_a_cache_to_write_to_torchs_own_choice_stands(user_cache: Path) -> None:
    user_cache.write_text("")
    with compiler_errors():
        assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
