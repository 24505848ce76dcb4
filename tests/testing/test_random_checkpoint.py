"""Written checkpoints: the same bytes everywhere, weights that make mistakes visible, files like the published ones."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import CodecConfig, ModelConfig
from megatalker.checkpoint.encoder_config import CodecEncoderConfig, SpeakerEncoderConfig
from megatalker.checkpoint.official import load_qwen_tts
from megatalker.checkpoint.shapes import (
    codec_decoder_shapes,
    codec_encoder_shapes,
    codec_unused_shapes,
    speaker_encoder_shapes,
    talker_shapes,
)
from megatalker.testing.configs import codec_config, model_config
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import PUBLISHED_0B6, PUBLISHED_1B7, TINY, CheckpointRecipe
from megatalker.testing.tokenizer import TOKENIZER_FILES, TOKENIZER_FOLDER, build_tokenizer
from megatalker.testing.weights import random_tensor

TINY_DIGEST = "615cc7ff6a35e04c588c17b7e8fd00b1"
"""Digest of every tensor of the tiny checkpoint."""


def test_a_recipe_gives_the_same_files_every_time(tmp_path: Path) -> None:
    first, second = (write_checkpoint(tmp_path / name, TINY) for name in "ab")
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert len(files) == 9
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


def test_random_weights_are_the_same_on_every_platform(tiny_custom_voice: Checkpoint) -> None:
    digest, tiny = hashlib.sha256(), tiny_custom_voice
    for names, tensor in ((tiny.tensor_names(), tiny.tensor), (tiny.codec_tensor_names(), tiny.codec_tensor)):
        for name in names:
            digest.update(name.encode() + tensor(name).numpy().tobytes())
    assert digest.hexdigest()[:32] == TINY_DIGEST


def test_the_seed_changes_every_random_tensor() -> None:
    shape, name = (64, 64), "talker.model.layers.0.mlp.up_proj.weight"
    assert not np.array_equal(random_tensor(name, shape, 0, 0), random_tensor(name, shape, 1, 0))
    assert not np.array_equal(random_tensor(name, shape, 0, 0), random_tensor(name.replace("0", "1"), shape, 0, 0))


def test_noise_has_unit_size_and_no_repetition() -> None:
    values = random_tensor("talker.model.text_embedding.weight", (999, 1001), 0, 0)
    assert abs(values.mean()) < 0.005
    assert abs(values.std() - 1) < 0.005
    assert len(np.unique(values.view(np.uint32).reshape(999, -1), axis=0)) == 999


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_language_model_is_stored_in_the_requested_type(dtype: str, tmp_path: Path) -> None:
    opened = Checkpoint.open(write_checkpoint(tmp_path, replace(TINY, dtype=dtype)))
    assert {opened.tensor(name).dtype for name in opened.tensor_names()} == {getattr(torch, dtype)}
    assert {opened.codec_tensor(name).dtype for name in opened.codec_tensor_names()} == {torch.float32}


def test_codebooks_must_be_divided_by_their_usage(tiny_custom_voice: Checkpoint) -> None:
    book = "decoder.quantizer.rvq_rest.vq.layers.3._codebook"
    usage = tiny_custom_voice.codec_tensor(f"{book}.cluster_usage")
    assert usage[-1] == 0  # which needs the clamp
    assert len(usage.unique()) > 3
    entries = tiny_custom_voice.codec_tensor(f"{book}.embedding_sum") / usage.clamp(min=1e-5)[:, None]
    assert entries.std(dim=1).max() < 2 * entries.std(dim=1).min()


@pytest.mark.parametrize("recipe", [PUBLISHED_0B6, PUBLISHED_1B7, TINY], ids=["0.6B", "1.7B", "tiny"])
def test_names_and_shapes_are_those_of_the_official_modules(recipe: CheckpointRecipe) -> None:
    load_qwen_tts()
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    base = replace(recipe, variant="base")
    raw, codec = model_config(base, assistant_id=0), codec_config(base)
    parsed = CodecConfig.parse(codec)
    with torch.device("meta"):
        model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**json.loads(json.dumps(raw))))
        tokenizer = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**codec))
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == {
        **talker_shapes(ModelConfig.parse(raw)),
        **speaker_encoder_shapes(SpeakerEncoderConfig.read(raw["speaker_encoder_config"])),
    }
    assert {name: tuple(value.shape) for name, value in tokenizer.state_dict().items()} == {
        **codec_decoder_shapes(parsed),
        **codec_unused_shapes(parsed),
        **codec_encoder_shapes(CodecEncoderConfig.parse(codec)),
    }


def test_the_configuration_has_the_published_special_ids() -> None:
    config = model_config(PUBLISHED_1B7, assistant_id=0)["talker_config"]
    assert config["rope_scaling"]["mrope_section"] == [24, 20, 20]
    assert (config["vocab_size"], config["codec_bos_id"], config["codec_eos_token_id"]) == (3072, 2149, 2150)
    assert (config["codec_language_id"]["english"], config["spk_id"]["ryan"]) == (2050, 3061)
    assert config["spk_is_dialect"]["eric"] == "sichuan_dialect"


def test_the_committed_tokenizer_is_what_the_corpus_gives(tmp_path: Path) -> None:
    build_tokenizer(tmp_path)
    for name in TOKENIZER_FILES:
        assert (tmp_path / name).read_bytes() == (TOKENIZER_FOLDER / name).read_bytes(), name
