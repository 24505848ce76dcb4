"""The text tokenizer gives the ids of the one that the official package loads."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2TokenizerFast

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.tokenizer import load_tokenizer

# characters at which splitters and normalisation differ; the rest is ordinary text in several scripts
TEXTS = (
    "",
    " ",
    "Guten Tag, it's 12 o'clock: naïve café — 你好! ½ Ⅷ",
    "HelloWorld XMLHttpRequest iPhone don'T WE'LL and/or //a/ b\n/ http://example.org/A/b",
    "  two  spaces\t\ttabs \r\n\r\n breaks \n",
    "e\u0301 \u212b \u0958 \u1100\u1161\u11a8 \u09c7\u09be \u200d \u00a0\u3000 \x1c \x85",
    "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>assistant\n<tts_pad>x <|im_end|> y",
    "😀👍🏽 \U0001d518\U0001d52b ﷺ 中文字 かな 한국어 Ελληνικά привет עברית",
)
WRITTEN_BY = [(None, "qwen3_tts"), ("4.57.2", "qwen3_tts"), ("4.57.2", None), ("4.57.3", "qwen3_tts"), ("5.0.0", None)]


@pytest.fixture
def folder(tiny_custom_voice: Checkpoint, tmp_path: Path) -> Path:
    for name in ("config.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(tiny_custom_voice.folder / name, tmp_path / name)
    return tmp_path


def edit(path: Path, changes: Mapping[str, Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")


def as_large_as_published(folder: Path) -> None:
    """Official corrections apply to large vocabularies only. One entry shows them: it reaches over a capital letter."""
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    entries = ["oW", *(f"unused{index}" for index in range(100_100 - len(vocabulary) - 1))]
    edit(folder / "vocab.json", {entry: index for index, entry in enumerate(entries, len(vocabulary))})
    with (folder / "merges.txt").open("a", encoding="utf-8") as merges:
        merges.write("o W\n")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = config["added_tokens_decoder"].values()
    edit(folder / "tokenizer_config.json", {"added_tokens_decoder": dict(enumerate(tokens, 100_100))})


def same_as_official(folder: Path) -> set[tuple[int, ...]]:
    official = Qwen2TokenizerFast.from_pretrained(str(folder), fix_mistral_regex=True)
    ours = load_tokenizer(folder)
    assert ours.get_vocab_size() == len(official)
    assert {index: str(token) for index, token in official.added_tokens_decoder.items()} == {
        index: token.content for index, token in ours.get_added_tokens_decoder().items()
    }
    for text in TEXTS:
        ids = official(text)["input_ids"]
        assert ours.encode(text).ids == ids
        assert ours.encode(text, add_special_tokens=False).ids == official(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids, skip_special_tokens=False) == official.decode(ids, clean_up_tokenization_spaces=False)
    return {tuple(ours.encode(text).ids) for text in TEXTS}


@pytest.mark.parametrize(("version", "model_type"), WRITTEN_BY)
def test_ids_are_official_whatever_wrote_the_checkpoint(
    folder: Path, version: str | None, model_type: str | None
) -> None:
    edit(folder / "config.json", {"transformers_version": version, "model_type": model_type})
    as_large_as_published(folder)
    same_as_official(folder)


def test_the_words_of_some_large_checkpoints_are_split_otherwise(folder: Path) -> None:
    as_large_as_published(folder)
    found = []
    for version in ("4.57.2", "4.57.3"):
        edit(folder / "config.json", {"transformers_version": version})
        found.append(same_as_official(folder))
    assert found[0] != found[1], "otherwise the texts above would not show which splitter is taken"


def test_small_vocabularies(folder: Path, demo: Checkpoint) -> None:
    same_as_official(folder)
    same_as_official(demo.folder)


def test_a_complete_tokenizer_file_counts(folder: Path) -> None:
    edited = load_tokenizer(folder)
    edited.enable_truncation(3)
    edited.enable_padding(length=8)
    edited.save(str(folder / "tokenizer.json"))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    same_as_official(folder)


def test_special_tokens_that_only_the_configuration_names(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", {"bos_token": "<s>", "additional_special_tokens": ["<|extra|>", "<s>"]})
    same_as_official(folder)
