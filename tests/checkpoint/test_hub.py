"""Hub downloads: only the needed files, progress in bytes, the cache without a network, clear errors."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import requests
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from rich.console import Console

from megatalker.checkpoint import Checkpoint, hub
from megatalker.checkpoint.hub import DownloadProgress, download_bar
from megatalker.errors import CheckpointError
from waiting import HANG_S

NAME = "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
SHA = "0123456789abcdef0123456789abcdef01234567"


def listed(*names: str) -> SimpleNamespace:
    sizes = {"model.safetensors": 1000}
    return SimpleNamespace(
        siblings=[
            SimpleNamespace(
                rfilename=name, size=sizes.get(name, 10), blob_id=f"blob-{name.replace('/', '-')}", lfs=None
            )
            for name in names
        ]
    )


ALL = listed(
    "README.md",
    ".gitattributes",
    "config.json",
    "merges.txt",
    "model.safetensors",
    "samples/voice.json",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Decides what the hub answers to a listing: a value or an exception."""

    def set_answer(value: object) -> None:
        def model_info(self: object, repository: str, *, files_metadata: bool, timeout: float) -> object:
            assert (repository, files_metadata) == (NAME, True)
            if isinstance(value, BaseException):
                raise value
            return value

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)

    return set_answer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_custom_voice: Checkpoint) -> Path:
    """A hub cache that holds the repository already."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / f"models--{NAME.replace('/', '--')}"
    shutil.copytree(tiny_custom_voice.folder, folder / "snapshots" / SHA)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(SHA)
    return folder


def refusal(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    response = requests.Response()
    response.status_code = status
    response.request = requests.Request("GET", "https://huggingface.co").prepare()
    return kind("refused", response=response)


@pytest.mark.parametrize(
    "offline",
    [OfflineModeIsEnabled("offline"), requests.exceptions.ConnectionError("no route"), requests.exceptions.Timeout()],
    ids=["HF_HUB_OFFLINE", "no network", "timeout"],
)
def test_without_a_network_the_cached_copy_opens(offline: Exception, answer: Any, cache: Path) -> None:
    answer(offline)
    opened = Checkpoint.open(NAME)
    assert opened.name == NAME
    assert opened.folder == cache / "snapshots" / SHA
    assert opened.tokenizer.encode("Hello").ids


def test_offline_mode_is_respected(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Checkpoint.open(NAME).folder == cache / "snapshots" / SHA


def test_without_a_network_and_a_copy_the_fix_is_named(answer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    answer(OfflineModeIsEnabled("offline"))
    with pytest.raises(CheckpointError, match=r"not in the local cache .* Go online, or run 'hf download"):
        Checkpoint.open(NAME)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (refusal(RepositoryNotFoundError, 404), r"no hub repository .* Check the spelling"),
        (refusal(GatedRepoError, 403), r"terms to be accepted .*https://huggingface\.co/Qwen/.* 'hf auth login'"),
        (refusal(HfHubHTTPError, 503), "the hub refused to list"),
    ],
    ids=["404", "gated", "503"],
)
def test_refusals_say_what_to_do(error: Exception, message: str, answer: Any) -> None:
    answer(error)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(NAME)


def test_another_kind_of_repository_is_refused_before_it_is_downloaded(answer: Any, monkeypatch: Any) -> None:
    answer(listed("config.json", "model.safetensors"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(
        CheckpointError, match=r"is not a Qwen3-TTS checkpoint: it has no speech_tokenizer/config\.json"
    ):
        Checkpoint.open(NAME)


def test_only_the_needed_files_are_fetched_and_progress_counts_bytes(
    answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_custom_voice: Checkpoint
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "POLL_SECONDS", 0.01)
    answer(ALL)
    blobs = tmp_path / f"models--{NAME.replace('/', '--')}" / "blobs"
    seen: list[DownloadProgress] = []

    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        assert set(allow_patterns) == {name.rfilename for name in ALL.siblings} - {
            "README.md",
            ".gitattributes",
            "samples/voice.json",
        }
        blobs.mkdir(parents=True)
        (blobs / "blob-model.safetensors.incomplete").write_bytes(bytes(600))
        deadline = time.monotonic() + HANG_S
        while not any(state.done == 600 for state in seen) and time.monotonic() < deadline:
            time.sleep(0.01)
        return str(tiny_custom_voice.folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    opened = Checkpoint.open(NAME, progress=seen.append)
    assert opened.name == NAME
    assert DownloadProgress(NAME, 600, 1040) in seen
    assert seen[-1] == DownloadProgress(NAME, 1040, 1040)
    assert str(DownloadProgress(NAME, 500_000_000, 2_000_000_000)) == f"downloading {NAME}: 0.50 of 2.00 GB"


def test_a_download_that_breaks_off_says_that_it_can_go_on(answer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    answer(ALL)

    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"broke off: .*No space left.* it continues where it stopped"):
        Checkpoint.open(NAME)


def test_the_bar_draws_only_when_something_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(record=True, force_terminal=True, width=100)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with download_bar():
        pass
    assert console.export_text() == ""
    with download_bar() as progress:
        progress(DownloadProgress(NAME, 500, 1000))
        progress(DownloadProgress(NAME, 1000, 1000))
    assert NAME in console.export_text()
