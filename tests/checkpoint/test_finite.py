"""Weights that are NaN or infinite are refused by name when they are read, not spoken."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatalker import Engine, Settings
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_codec, load_official_model
from megatalker.checkpoint.tensors import refuse_nonfinite
from megatalker.errors import CheckpointError

CPU = torch.device("cpu")
HEAD, CONV = "talker.codec_head.weight", "decoder.pre_conv.conv.weight"


def spoil(folder: Path, file: str, name: str, value: float) -> None:
    tensors = load_file(folder / file)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, folder / file, metadata={"format": "pt"})


@pytest.fixture
def folder(tiny_custom_voice: Checkpoint, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_custom_voice.folder, tmp_path / "copy"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_tensor_is_named_when_it_is_read(value: float, folder: Path) -> None:
    spoil(folder, "model.safetensors", HEAD, value)
    spoil(folder, "speech_tokenizer/model.safetensors", CONV, value)
    opened = Checkpoint.open(folder)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"tensor 'talker\.codec_head\.weight' holds NaN or infinity"):
            opened.tensor(HEAD)
    with pytest.raises(CheckpointError, match=r"speech_tokenizer: tensor 'decoder\.pre_conv\.conv\.weight' holds NaN"):
        opened.codec_tensor(CONV)
    assert opened.tensor("talker.model.norm.weight") is not None


def test_a_tensor_is_looked_at_once(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(
        "megatalker.checkpoint.tensors.refuse_nonfinite", lambda tensor, name, folder: looked_at.append(name)
    )
    opened = Checkpoint.open(tiny_custom_voice.folder)
    assert looked_at == []
    for _ in range(3):
        opened.tensor(HEAD)
    assert looked_at == [HEAD]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_finite_weights_whose_sum_overflows_are_accepted(dtype: torch.dtype) -> None:
    refuse_nonfinite(torch.full((64,), torch.finfo(dtype).max, dtype=dtype), "large", Path("folder"))
    refuse_nonfinite(torch.empty(0, dtype=dtype), "empty", Path("folder"))


def test_the_official_modules_are_looked_at_too(folder: Path) -> None:
    spoil(folder, "model.safetensors", HEAD, math.nan)
    spoil(folder, "speech_tokenizer/model.safetensors", CONV, math.inf)
    opened = Checkpoint.open(folder)
    with pytest.raises(CheckpointError, match=r"tensor 'talker\.codec_head\.weight' holds NaN"):
        load_official_model(opened, CPU, torch.float32)
    with pytest.raises(CheckpointError, match=r"tensor 'decoder\.pre_conv\.conv\.weight' holds NaN"):
        load_official_codec(opened, CPU, torch.float32)


@pytest.mark.parametrize(("backend", "codec"), [("compiled", "reference"), ("reference", "streaming")])
def test_no_engine_opens_on_such_weights(backend: str, codec: str, folder: Path) -> None:
    spoil(folder, "model.safetensors", "talker.model.layers.1.mlp.down_proj.weight", math.nan)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj\.weight' holds NaN or infinity"):
        Engine.open(Settings(checkpoint=str(folder), backend=backend, codec=codec, device="cpu"))
