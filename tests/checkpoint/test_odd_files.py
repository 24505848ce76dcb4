"""Checkpoints whose files are odd: each is a clear error that names the file, and no pipe is waited for."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import megatalker
from megatalker.checkpoint import Checkpoint
from megatalker.errors import CheckpointError

DEMO = Path(megatalker.__file__).parent / "checkpoint" / "demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of links, so that files can be replaced."""
    copy = tmp_path / "copy"
    shutil.copytree(DEMO, copy, copy_function=os.symlink)
    return copy


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b"null",
        b"3",
        b"{}",
        b'{"weight_map": null}',
        b'{"weight_map": {}}',
        b'{"weight_map": [1]}',
        b'{"weight_map": {"a": 1, "b": 2}}',
        b'{"weight_map": {"a": 1, "b": "x"}}',
        b'{"weight_map": {"a": ["x"]}}',
        b'{"weight_map": {"a": null}}',
        b'{"weight_map": {"a": ""}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map": {"a": "../model.safetensors"}}',
        b'{"weight_map": {"a": "%s"}}' % (b"x" * 5000),
        b'{"weight_map": {"a": "b\\u0000c"}}',
        b'{"weight_map": {"a": "\\ud800"}}',
        b"[" * 100_000,
        b'{"weight_map": %s}' % (b"9" * 5000),
        b"\xff\xfe\0",
    ],
    ids=lambda index: repr(index[:40]),
)
def test_an_odd_index_is_a_clear_error(folder: Path, index: bytes) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / INDEX).write_bytes(index)
    with pytest.raises(CheckpointError, match=r"index\.json(: not a safetensors index| lists)"):
        Checkpoint.open(folder)


def test_a_good_index_still_opens(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / INDEX).write_text('{"weight_map": {"anything": "part.safetensors"}}')
    assert Checkpoint.open(folder).config


FILES = ("config.json", "generation_config.json", "speech_tokenizer/config.json", "model.safetensors", "merges.txt")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_regular_file_is_not_waited_for(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(CheckpointError, match=r"no regular file|exist"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("content", [b"\0\xff", b"[" * 100_000, b'{"a": %s}' % (b"9" * 5000), b"", b"[]"])
@pytest.mark.parametrize("name", FILES[:3])
def test_json_that_is_none_is_a_clear_error(folder: Path, name: str, content: bytes) -> None:
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000, "~nobody-of-this-name/x", "/dev/zero", " "])
def test_a_name_that_is_no_folder_is_a_clear_error(name: str) -> None:
    with pytest.raises(CheckpointError, match="there is no such folder"):
        Checkpoint.open(name)


def test_a_checkpoint_for_the_port_of_transformers_is_named(folder: Path) -> None:
    """Made like ``convert_qwen3_tts_to_hf.py`` does: no codec, no sampling defaults, one table for the rotation."""
    config = json.loads((folder / "config.json").read_text())
    talker = config["talker_config"]
    talker["rope_parameters"] = talker.pop("rope_scaling") | {"rope_theta": talker.pop("rope_theta")}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    shutil.rmtree(folder / "speech_tokenizer")
    (folder / "generation_config.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"converted for transformers' own Qwen3-TTS, .*use the one that it was made"
    ):
        Checkpoint.open(folder)
