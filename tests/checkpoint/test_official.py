"""The official package: imported quietly, and able to load, unmodified, what the project writes."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_codec, load_official_model, load_qwen_tts
from megatalker.errors import CheckpointError
from waiting import PROCESS_S

CPU = torch.device("cpu")
VARIANTS = ["tiny_custom_voice", "tiny_base", "tiny_voice_design", "tiny_1b7", "demo"]
GREEDY = {"do_sample": False, "subtalker_dosample": False, "language": "english"}

IMPORT = """
import sys
from megatalker.checkpoint.official import load_qwen_tts
qwen_tts = load_qwen_tts()
assert load_qwen_tts() is qwen_tts and qwen_tts.Qwen3TTSModel
empty = [n for n, m in sys.modules.items() if n.split(".")[0] in ("torchaudio", "sox") and not hasattr(m, "__file__")]
assert not empty, empty
"""


@pytest.mark.slow
def test_importing_prints_nothing_and_leaves_no_stand_in() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=PROCESS_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("error", ["OSError", "RuntimeError"])
def test_a_torchaudio_for_other_libraries_is_done_without(error: str, tmp_path: Path) -> None:
    (tmp_path / "torchaudio.py").write_text(f"raise {error}('compiled with another CUDA')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{IMPORT}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROCESS_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["megatalker.checkpoint.official", "megatalker_pipecat.agent"])
def test_what_is_imported_reports_to_nobody(module: str, tmp_path: Path) -> None:
    """onnxruntime keeps a store of what it is about to report, except in CI."""
    program = f"import {module} as asked; getattr(asked, 'load_qwen_tts', int)(); import onnxruntime; print('there')"
    environ = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environ |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROCESS_S, check=False, env=environ
    )
    assert done.stdout.endswith("there\n"), done.stderr
    assert not list(tmp_path.rglob("*onnxruntime*"))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_official_package_loads_every_tensor_and_no_other(name: str, request: pytest.FixtureRequest) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(name)
    official = load_official_model(checkpoint, CPU, torch.float32)
    for module, names, tensor in (
        (official.model, checkpoint.tensor_names(), checkpoint.tensor),
        (official.model.speech_tokenizer.model, checkpoint.codec_tensor_names(), checkpoint.codec_tensor),
    ):
        loaded = module.state_dict()
        assert set(loaded) == set(names)
        for key in names:
            assert torch.equal(loaded[key], tensor(key)), key


def test_loading_and_generating_print_nothing_and_restore_the_loggers(
    tiny_custom_voice: Checkpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging as transformers_logging

    load_qwen_tts()
    before = (logging.root.manager.disable, transformers_logging.get_verbosity())
    official = load_official_model(tiny_custom_voice, CPU, torch.float32)
    official.generate_custom_voice("Hello.", speaker="ryan", language="english", max_new_tokens=3)
    assert capfd.readouterr() == ("", "")
    assert (logging.root.manager.disable, transformers_logging.get_verbosity()) == before


@pytest.mark.parametrize("name", ["tiny_custom_voice", "tiny_1b7"])
def test_the_official_package_speaks(name: str, request: pytest.FixtureRequest) -> None:
    official = load_official_model(request.getfixturevalue(name), CPU, torch.float32)
    waves, rate = official.generate_custom_voice("Hello there.", speaker="Eric", max_new_tokens=5, **GREEDY)
    assert (rate, waves[0].shape) == (24000, (4 * 1920,))
    assert 0.03 < np.sqrt(np.mean(waves[0] ** 2)) < 0.3
    assert np.abs(waves[0]).max() < 1


def test_the_official_package_designs_a_voice(tiny_voice_design: Checkpoint) -> None:
    official = load_official_model(tiny_voice_design, CPU, torch.float32)
    waves, _ = official.generate_voice_design("Hello.", instruct="A calm old man.", max_new_tokens=4, **GREEDY)
    assert waves[0].shape == (3 * 1920,)


def test_the_official_package_clones_voices_that_differ(tiny_base: Checkpoint) -> None:
    official = load_official_model(tiny_base, CPU, torch.float32)
    time = np.arange(24000) / 24000
    low, high = (np.sin(2 * np.pi * pitch * time).astype(np.float32) * 0.3 for pitch in (110, 440))
    items = official.create_voice_clone_prompt([(low, 24000), (high, 24000)], ref_text=["One.", "Two."])
    assert [tuple(item.ref_code.shape) for item in items] == [(13, 16), (13, 16)]
    assert (items[0].ref_code != items[1].ref_code).float().mean() > 0.5
    assert (items[0].ref_spk_embedding - items[1].ref_spk_embedding).std() > 0.02
    waves, _ = official.generate_voice_clone("Hello.", voice_clone_prompt=items[:1], max_new_tokens=4, **GREEDY)
    assert waves[0].shape == (3 * 1920,)


def test_the_codec_loads_on_its_own(tiny_custom_voice: Checkpoint) -> None:
    codec = load_official_codec(tiny_custom_voice, CPU, torch.float32)
    codes = torch.arange(4 * 16).reshape(4, 16)
    waves, rate = codec.decode({"audio_codes": codes})
    assert (rate, waves[0].shape) == (24000, (4 * 1920,))


def test_a_folder_that_the_official_package_cannot_load_is_named(tiny_base: Checkpoint, tmp_path: Path) -> None:
    class Elsewhere:
        folder = tmp_path
        config = tiny_base.config

    with pytest.raises(CheckpointError, match=r"the official qwen-tts package cannot load .* official|published"):
        load_official_codec(Elsewhere(), CPU, torch.float32)  # type: ignore[arg-type]
