"""Speaking, cloning, serving and agents do without the official package and what it brings; what needs it says so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lean_session
from declared import PROJECT, brought
from megatalker.checkpoint.official import load_qwen_tts
from megatalker.errors import UnsupportedError
from waiting import PROCESS_S

OFFICIAL = "the official package qwen-tts is not installed; pip install 'megatalker[official]'"
HEAVY = {"qwen-tts", "transformers", "accelerate", "gradio", "pandas", "librosa", "torchaudio", "onnxruntime", "scipy"}


def test_heavy_packages_come_with_the_extra() -> None:
    assert brought("official") >= HEAVY
    assert not HEAVY & brought("server", "client", "cuda", "play", "tracing")


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_only_the_extra_for_comparisons_brings_the_official_package(extra: str) -> None:
    compares = extra in ("official", "conformance", "demo-voice", "quality", "dev")
    assert ("qwen-tts" in brought(extra)) is compares


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lean")
    command = [sys.executable, lean_session.__file__]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PROCESS_S)
    assert done.returncode == 0, done.stderr
    assert (folder / "hi.wav").stat().st_size > 10_000
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


@pytest.mark.slow
def test_server_client_and_adapter_work(found: dict[str, Any]) -> None:
    assert "/v1/audio/speech" in found["paths"]
    assert found["also"] == ["RemoteEngine", "MegatalkerTTSService"]


@pytest.mark.slow
def test_backends_are_chosen_from_what_is_there_and_the_log_names_what_cannot_take_over(found: dict[str, Any]) -> None:
    assert any(line.startswith("talker backend: compiled, the best available on cpu") for line in found["log"])
    assert any(line.startswith("codec backend: streaming, the best available on cpu") for line in found["log"])
    assert f"talker backend reference is left out of failover: {OFFICIAL}" in found["log"]
    assert f"codec backend reference is left out of failover: {OFFICIAL}" in found["log"]


@pytest.mark.slow
def test_recordings_are_cloned(found: dict[str, Any]) -> None:
    assert set(found["cloned"]) == {"say", "folder", "upload", "request"}
    assert min(found["cloned"].values()) > 40_000  # bytes: most of a second
    assert len({found["cloned"][name] for name in ("folder", "upload", "request")}) == 1, "of one recording, one voice"


@pytest.mark.slow
def test_errors_say_how_to_install_the_official_package(found: dict[str, Any]) -> None:
    assert found["errors"] == {
        "backend": f"BackendUnavailableError: talker backend 'reference' cannot run here: {OFFICIAL}",
        "codec": f"BackendUnavailableError: codec backend 'reference' cannot run here: {OFFICIAL}",
    }
    card = {(part, name): result for part, name, *result in found["card"]}
    not_run = ["not run", f"this compares with the official modules, and {OFFICIAL}"]
    assert card["prompts", "all"] == card["codec", "the rest"] == not_run
    assert card["codec", "chunks against one call"][0] == "passed"


def test_half_an_official_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "qwen_tts.py").write_text("import accelerate_of_another_machine")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "qwen_tts", raising=False)
    with pytest.raises(
        UnsupportedError, match=r"cannot be imported: .*accelerate.*; pip install 'megatalker\[official\]'"
    ):
        load_qwen_tts()
