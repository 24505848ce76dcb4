"""Any value in the place of any value that is read from a checkpoint's JSON files: opened, or one clear error."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import CodecConfig, ModelConfig
from megatalker.errors import CheckpointError
from megatalker.voices.speaker_encoder import SpeakerEncoder

FILES = ("config.json", "generation_config.json", "speech_tokenizer/config.json")
JUNK = ("abc", None, True, -1, 1.5, 10**30, float("nan"), float("inf"), [], {}, ["a"], [10**30], {"a": None})
MAY_BE_NULL = {
    "decoder_config.head_dim",
    "talker_config.spk_id",
    "talker_config.spk_is_dialect",
    "talker_config.rope_scaling",
    "talker_config.code_predictor_config.rope_scaling",
    "talker_config.code_predictor_config.layer_types",
}
NUMBERS = {"rms_norm_eps", "rope_theta"}
TABLES_OF_NAMES = {"spk_id", "spk_is_dialect", "codec_language_id", "rope_scaling"}


class WatchedTable(dict[str, Any]):
    """Remembers the keys that were looked at, below its own path."""

    def __init__(self, content: dict[str, Any], path: tuple[str, ...], seen: set[tuple[str, ...]]) -> None:
        super().__init__(
            {key: WatchedTable(v, (*path, key), seen) if isinstance(v, dict) else v for key, v in content.items()}
        )
        self._path, self._seen = path, seen

    def __getitem__(self, key: str) -> Any:
        self._seen.add((*self._path, key))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._seen.add((*self._path, key))
        return super().get(key, default)


def replaced(content: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = table = deepcopy(content)
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return changed


def is_sensible(path: tuple[str, ...], value: Any) -> bool:
    """Whether a value of :data:`JUNK` is none in this place."""
    key, parent = path[-1], path[-2] if len(path) > 1 else ""
    if value is None:
        return ".".join(path) in MAY_BE_NULL
    if key in NUMBERS:
        return value in (1.5, 10**30) and value < 2**64
    if key == "tts_model_size" or parent == "spk_is_dialect":
        return bool(value == "abc")
    if key == "use_sliding_window":
        return value is True
    return (value == {} and key in TABLES_OF_NAMES) or (value == {"a": None} and key == "rope_scaling")


@pytest.mark.parametrize(("file", "parse"), [(FILES[0], ModelConfig.parse), (FILES[2], CodecConfig.parse)])
def test_every_wrong_value_of_a_configuration_is_named(
    file: str, parse: Callable[..., Any], tiny_base: Checkpoint, tiny_custom_voice: Checkpoint
) -> None:
    for checkpoint in (tiny_base, tiny_custom_voice):
        content = json.loads((checkpoint.folder / file).read_text())
        seen: set[tuple[str, ...]] = set()
        parse(WatchedTable(content, (), seen), file)
        read = [path for path in sorted(seen) if _holds(content, path)]
        assert len(read) > 18
        for path in read:
            for value in JUNK:
                if is_sensible(path, value):
                    parse(replaced(content, path, value), file)
                    continue
                with pytest.raises(CheckpointError) as raised:
                    parse(replaced(content, path, value), file)
                message = str(raised.value)
                assert message.startswith(f"{file}: "), (path, value, message)
                assert path[-1] in message, (path, value, message)
                assert "expected" in message or "is missing" in message, (path, value, message)


@pytest.mark.parametrize("key", ["vocab_size", "code_predictor_config", "codec_eos_token_id", "codec_language_id"])
def test_a_missing_value_is_named(key: str, tiny_custom_voice: Checkpoint) -> None:
    content = json.loads((tiny_custom_voice.folder / "config.json").read_text())
    del content["talker_config"][key]
    with pytest.raises(CheckpointError, match=rf"config\.json: talker_config\.{key} is missing"):
        ModelConfig.parse(content)


def _holds(content: dict[str, Any], path: tuple[str, ...]) -> bool:
    table: Any = content
    for key in path[:-1]:
        table = table[key]
    return path[-1] in table


@pytest.fixture
def folder(tiny_base: Checkpoint, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_base.folder, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("max_new_tokens", "abc", "an integer from 2 to"),
        ("max_new_tokens", 1, "an integer from 2 to"),
        ("max_new_tokens", None, "an integer from 2 to"),
        ("max_new_tokens", 99.5, "an integer from 2 to"),
        ("do_sample", "yes", "True or False"),
        ("top_k", False, "an integer of at least 1"),
        ("top_k", 10**30, "an integer of at least 1 and below"),
        ("subtalker_top_k", -1, "an integer of at least 1"),
        ("subtalker_temperature", [], "a number from"),
        ("subtalker_dosample", 1, "True or False"),
        ("repetition_penalty", None, "a number from"),
    ],
)
def test_a_wrong_sampling_default_is_named_as_the_file_has_it(
    key: str, value: object, expected: str, folder: Path
) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(CheckpointError) as raised:
        Checkpoint.open(folder)
    assert f"{path}: {key} is {value!r}, expected {expected}" in str(raised.value)


def paths_of(content: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in content.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += paths_of(value, (*path, key))
    return found


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(JUNK[:6])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_no_value_anywhere_ends_in_a_traceback(data: st.DataObject, tiny_base: Checkpoint, folder: Path) -> None:
    file = data.draw(st.sampled_from(FILES))
    content = json.loads((tiny_base.folder / file).read_text())
    path = data.draw(st.sampled_from(paths_of(content)))
    (folder / file).write_text(json.dumps(replaced(content, path, data.draw(ANYTHING))))
    with suppress(CheckpointError):
        Checkpoint.open(folder)
    (folder / file).write_text(json.dumps(content))


@pytest.mark.parametrize("key", ["mel_dim", "enc_dim", "enc_channels", "enc_res2net_scale", "enc_dilations"])
def test_a_wrong_value_of_the_speaker_encoder_is_refused_when_it_is_loaded(key: str, folder: Path) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for value in ("abc", True, -1, 1.5, 10**30, [], {}, ["a"], [7]):
        path.write_text(json.dumps(replaced(content, ("speaker_encoder_config", key), value)))
        opened = Checkpoint.open(folder)
        with pytest.raises(CheckpointError, match=rf"speaker_encoder_config\.{key} is"):
            SpeakerEncoder(opened, torch.device("cpu"))


def test_nesting_without_end_is_no_json_for_us(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read as JSON"):
        Checkpoint.open(folder)
