"""Opening checkpoints: contents, sampling defaults, and one clear error for each kind of damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.shapes import codec_decoder_shapes, talker_shapes
from megatalker.errors import CheckpointError
from megatalker.sampling import SamplingParams


@pytest.fixture
def folder(tiny_custom_voice: Checkpoint, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_custom_voice.folder, tmp_path / "copy"))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_talker(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    edit_json(folder / "config.json", talker_config=config["talker_config"] | changes)


def edit_predictor(folder: Path, **changes: Any) -> None:
    predictor = json.loads((folder / "config.json").read_text())["talker_config"]["code_predictor_config"]
    edit_talker(folder, code_predictor_config=predictor | changes)


def edit_codec(folder: Path, **changes: Any) -> None:
    path = folder / "speech_tokenizer" / "config.json"
    edit_json(path, decoder_config=json.loads(path.read_text())["decoder_config"] | changes)


def edit_tensors(path: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_checkpoint_knows_its_names_configuration_and_tensors(tiny_1b7: Checkpoint) -> None:
    assert tiny_1b7.name == "tiny_1b7"
    assert tiny_1b7.config.size == "1b7"
    assert tiny_1b7.config.projects_predictor
    assert tiny_1b7.max_new_tokens == 8192
    assert set(tiny_1b7.tensor_names()) == set(talker_shapes(tiny_1b7.config))
    assert set(tiny_1b7.codec_tensor_names()) > set(codec_decoder_shapes(tiny_1b7.codec_config))
    stored = load_file(tiny_1b7.folder / "model.safetensors")
    for name in tiny_1b7.tensor_names():
        assert torch.equal(tiny_1b7.tensor(name), stored[name])
    codec = load_file(tiny_1b7.folder / "speech_tokenizer" / "model.safetensors")
    assert torch.equal(tiny_1b7.codec_tensor("decoder.pre_conv.conv.weight"), codec["decoder.pre_conv.conv.weight"])


def test_an_unknown_tensor_is_named(tiny_base: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"tensor 'talker\.nonsense' is missing"):
        tiny_base.tensor("talker.nonsense")


def test_sampling_defaults_come_from_the_generation_configuration(folder: Path) -> None:
    assert Checkpoint.open(folder).sampling == SamplingParams()
    edit_json(
        folder / "generation_config.json",
        do_sample=False,
        temperature=0.5,
        top_k=0,
        top_p=0.8,
        repetition_penalty=1.3,
        subtalker_dosample=False,
        subtalker_temperature=0.6,
        subtalker_top_k=7,
        subtalker_top_p=0.7,
        max_new_tokens=99,
    )
    opened = Checkpoint.open(folder)
    assert opened.max_new_tokens == 99
    assert opened.sampling == SamplingParams(
        do_sample=False,
        temperature=0.5,
        top_k=None,
        top_p=0.8,
        repetition_penalty=1.3,
        predictor_do_sample=False,
        predictor_temperature=0.6,
        predictor_top_k=7,
        predictor_top_p=0.7,
    )


def test_missing_generation_values_are_the_official_defaults(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{}")
    opened = Checkpoint.open(folder)
    assert (opened.sampling, opened.max_new_tokens) == (SamplingParams(), 2048)


def test_the_tokenizer_cuts_prompts_where_the_official_code_cuts_them(tiny_custom_voice: Checkpoint) -> None:
    config = json.loads((tiny_custom_voice.folder / "config.json").read_text())
    text = "Guten Tag, it's 12 o'clock: naïve café — 你好!"
    encode = tiny_custom_voice.tokenizer.encode
    ids = encode(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
    head = [config["im_start_token_id"], config["assistant_token_id"], *encode("\n").ids]
    assert ids[:3] == head
    assert ids[-5:] == [config["im_end_token_id"], head[2], *head]
    assert tiny_custom_voice.tokenizer.decode(ids[3:-5]) == text
    assert len(encode("user")) == 1
    assert tiny_custom_voice.tokenizer.get_vocab_size() == tiny_custom_voice.config.text_vocab_size


def test_special_text_ids_are_those_of_the_tokenizer(tiny_custom_voice: Checkpoint) -> None:
    config, convert = tiny_custom_voice.config, tiny_custom_voice.tokenizer.token_to_id
    assert [convert(token) for token in ("<tts_text_bos>", "<tts_text_eod>", "<tts_pad>")] == [
        config.tts_bos_id,
        config.tts_eos_id,
        config.tts_pad_id,
    ]


def test_the_fingerprint_tells_weights_and_configuration_apart(folder: Path, tiny_custom_voice: Checkpoint) -> None:
    same = Checkpoint.open(folder).fingerprint
    assert same == tiny_custom_voice.fingerprint
    edit_json(folder / "generation_config.json", temperature=0.8)
    other_settings = Checkpoint.open(folder).fingerprint
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors["talker.codec_head.weight"].neg_())
    assert len({same, other_settings, Checkpoint.open(folder).fingerprint}) == 3


def shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_sharded_checkpoints_open_like_whole_ones(folder: Path, tiny_custom_voice: Checkpoint) -> None:
    shard(folder)
    opened = Checkpoint.open(folder)
    assert opened.tensor_names() == tiny_custom_voice.tensor_names()
    for name in opened.tensor_names():
        assert torch.equal(opened.tensor(name), tiny_custom_voice.tensor(name))


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lists 'model-00002-of-00002\.safetensors', which does not exist"):
        Checkpoint.open(folder)


def test_a_damaged_index_is_refused(folder: Path) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(CheckpointError, match=r"index\.json: not a safetensors index"):
        Checkpoint.open(folder)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


HEAD, HEAD_BIAS = "talker.codec_head.weight", "talker.codec_head.bias"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: does not exist"),
    "no generation config": (lambda f: (f / "generation_config.json").unlink(), r"generation_config\.json: does not"),
    "bad config": (lambda f: (f / "config.json").write_text("{"), r"config\.json: cannot be read as JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "holds a list, expected a JSON object"),
    "other model": (lambda f: edit_json(f / "config.json", model_type="llama"), "model_type is 'llama'"),
    "bad default": (lambda f: edit_json(f / "generation_config.json", temperature=-1), "temperature is -1"),
    "no codec": (lambda f: shutil.rmtree(f / "speech_tokenizer"), r"speech_tokenizer/config\.json: does not exist"),
    "25 Hz codec": (
        lambda f: edit_json(f / "speech_tokenizer" / "config.json", model_type="qwen3_tts_tokenizer_25hz"),
        r"speech_tokenizer/config\.json: model_type is 'qwen3_tts_tokenizer_25hz', expected 'qwen3_tts_tokenizer_12hz'",
    ),
    "no vocabulary": (lambda f: (f / "vocab.json").unlink(), r"vocab\.json: does not exist"),
    "no merges": (lambda f: (f / "merges.txt").unlink(), r"merges\.txt: does not exist"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"neither model\.safetensors nor"),
    "truncated": (lambda f: truncate(f / "model.safetensors"), r"model\.safetensors: cannot be read as safetensors"),
    "truncated codec": (
        lambda f: truncate(f / "speech_tokenizer" / "model.safetensors"),
        r"speech_tokenizer/model\.safetensors: cannot be read as safetensors",
    ),
    "git-lfs placeholder": (
        lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "placeholder of git-lfs",
    ),
    "missing tensor": (
        lambda f: edit_tensors(f / "model.safetensors", lambda tensors: tensors.pop(HEAD)),
        r"tensor 'talker\.codec_head\.weight' is missing",
    ),
    "missing codec tensor": (
        lambda f: edit_tensors(f / "speech_tokenizer/model.safetensors", lambda t: t.pop("decoder.pre_conv.conv.bias")),
        r"tensor 'decoder\.pre_conv\.conv\.bias' is missing",
    ),
    "wrong shape": (
        lambda f: edit_tensors(f / "model.safetensors", lambda t: t.update({HEAD: t[HEAD][:-1].clone()})),
        r"tensor 'talker\.codec_head\.weight' has shape \[1151, 64\], expected \[1152, 64\]",
    ),
    "one talker layer fewer": (
        lambda f: edit_talker(f, num_hidden_layers=2),
        r"no use for tensor 'talker\.model\.layers\.2\.input_layernorm\.weight' \(11 such tensors\).*number of layers",
    ),
    "one predictor layer fewer": (
        lambda f: edit_predictor(f, num_hidden_layers=1),
        r"no use for tensor 'talker\.code_predictor\.model\.layers\.1\.input_layernorm\.weight'",
    ),
    "one codec layer fewer": (
        lambda f: edit_codec(f, num_hidden_layers=1),
        r"speech_tokenizer: .*no use for tensor 'decoder\.pre_transformer\.layers\.1\.input_layernorm\.weight'",
    ),
    "a bias that would be ignored": (
        lambda f: edit_tensors(f / "model.safetensors", lambda t: t.update({HEAD_BIAS: t[HEAD][:, 0].clone()})),
        r"no use for tensor 'talker\.codec_head\.bias' \(1 such tensors\)",
    ),
    "quantised": (
        lambda f: edit_tensors(f / "model.safetensors", lambda t: t.update({HEAD: t[HEAD].to(torch.int8)})),
        "is stored as I8, expected one of F32",
    ),
    "other codec": (
        lambda f: (edit_talker(f, num_code_groups=8), edit_predictor(f, num_code_groups=8)),
        "has 16 codebooks, the talker 8 code groups",
    ),
    "smaller codebooks": (lambda f: edit_talker(f, vocab_size=2048), "128 codes in a codebook, the talker 1024"),
    "special id": (lambda f: edit_talker(f, codec_bos_id=1152), "codec_bos_id is 1152, expected an id below 1152"),
    "speaker id": (
        lambda f: edit_talker(f, spk_id={"ann": -1}),
        r"talker_config\.spk_id\.ann is -1, expected an integer from 0",
    ),
    "text id": (lambda f: edit_json(f / "config.json", tts_pad_token_id=5000), "tts_pad_token_id is 5000"),
    "dialect": (lambda f: edit_talker(f, spk_is_dialect={"eric": "klingon"}), "dialect 'klingon'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(case: str, folder: Path) -> None:
    damage, message = DAMAGE[case]
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(folder)


def test_a_damaged_tokenizer_is_named_when_it_is_used(folder: Path) -> None:
    (folder / "vocab.json").write_text("{")
    with pytest.raises(CheckpointError, match="the tokenizer files are damaged"):
        _ = Checkpoint.open(folder).tokenizer


@pytest.mark.parametrize("name", ["nowhere", "./no/where", "/no/such/folder", "a/b/c", Path("organisation/name")])
def test_a_name_that_is_nothing_lists_what_is_accepted(
    name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"no such folder; expected 'demo', .* a folder .*, or a hub id"):
        Checkpoint.open(name)
