"""Keys of the JSON files that change what is computed: honoured, refused by name, or listed."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import CheckpointError
from megatalker.voices.speaker_encoder import SpeakerEncoder

MODEL, GENERATION, CODEC = "config.json", "generation_config.json", "speech_tokenizer/config.json"
PREDICTOR = "talker_config.code_predictor_config"


@pytest.fixture
def folder(tiny_base: Checkpoint, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(tiny_base.folder, tmp_path / "copy"))


def change(file: Path, path: str, value: Any) -> None:
    content = table = json.loads(file.read_text())
    *parents, key = path.split(".")
    for name in parents:
        table = table[name]
    table[key] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "path", "value", "expected"),
    [
        (MODEL, "talker_config.rope_scaling", {"type": "linear", "factor": 3}, "rope_scaling.type is 'linear'"),
        (MODEL, "talker_config.rope_scaling.rope_type", "yarn", "rope_scaling.rope_type is 'yarn'"),
        (MODEL, f"{PREDICTOR}.rope_scaling", {"type": "dynamic", "factor": 2}, "rope_scaling.type is 'dynamic'"),
        (MODEL, "talker_config.hidden_act", "gelu", "talker_config.hidden_act is 'gelu', expected 'silu'"),
        (MODEL, f"{PREDICTOR}.attention_bias", True, f"{PREDICTOR}.attention_bias is True, expected False"),
        (MODEL, f"{PREDICTOR}.layer_types", ["full_attention", "sliding_attention"], "a list of 'full_attention'"),
        (MODEL, f"{PREDICTOR}.num_code_groups", 8, f"{PREDICTOR}.num_code_groups is 8, expected 16"),
        (MODEL, f"{PREDICTOR}.tie_word_embeddings", True, "tie_word_embeddings is True, expected False"),
        (MODEL, "quantization_config", {"bits": 4}, "quantization_config is {'bits': 4}, expected None"),
        (CODEC, "decoder_config.hidden_act", "gelu", "decoder_config.hidden_act is 'gelu', expected 'silu'"),
        (CODEC, "decoder_config.attention_bias", True, "decoder_config.attention_bias is True, expected False"),
        (CODEC, "decoder_config.rope_scaling", {"type": "linear", "factor": 3}, "rope_scaling.type is 'linear'"),
        (CODEC, "decode_upsample_rate", 960, "decode_upsample_rate is 960, expected 1920"),
        (CODEC, "input_sample_rate", 16000, "input_sample_rate is 16000, expected 24000"),
    ],
)
def test_what_would_speak_wrongly_is_refused_by_name(
    folder: Path, file: str, path: str, value: Any, expected: str
) -> None:
    change(folder / file, path, value)
    with pytest.raises(CheckpointError) as raised:
        Checkpoint.open(folder)
    assert str(raised.value).startswith(f"{folder / file}: ")
    assert expected in str(raised.value)


def test_every_key_of_official_files_is_read_or_known_to_change_nothing(
    demo: Checkpoint,
    tiny_base: Checkpoint,
    tiny_custom_voice: Checkpoint,
    tiny_voice_design: Checkpoint,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for checkpoint in (demo, tiny_base, tiny_custom_voice, tiny_voice_design):
        assert Checkpoint.open(checkpoint.folder).unhonoured_keys == ()
    assert "not honoured" not in caplog.text


def test_keys_that_nobody_reads_are_listed_and_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(folder / MODEL, "talker_config.new_idea", 3)
    change(folder / MODEL, "talker_config.rope_scaling.factor", 3)
    change(folder / GENERATION, "min_p", 0.1)
    change(folder / CODEC, "decoder_config.window", {"kind": "hann"})
    with caplog.at_level(logging.WARNING, "megatalker"):
        opened = Checkpoint.open(folder)
    assert opened.unhonoured_keys == (
        "config.json: talker_config.new_idea",
        "config.json: talker_config.rope_scaling.factor",
        "generation_config.json: min_p",
        "speech_tokenizer/config.json: decoder_config.window",
    )
    assert "talker_config.new_idea" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("sample_rate", 16000, "sample_rate is 16000, expected 24000"), ("enc_new", 3, "no such key")],
)
def test_the_speaker_encoder_refuses_what_it_does_not_honour(folder: Path, key: str, value: int, expected: str) -> None:
    change(folder / MODEL, f"speaker_encoder_config.{key}", value)
    with pytest.raises(CheckpointError, match=expected):
        SpeakerEncoder(Checkpoint.open(folder), torch.device("cpu"))
