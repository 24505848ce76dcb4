"""Downloads over HTTP, from loopback servers: resumed after a cut, shown while they run, kept for later, refused."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import reset_sessions

from commands import megatalker
from hub_server import Repository, hub, modelscope
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint import hub as hub_module
from megatalker.checkpoint.hub import DownloadProgress
from megatalker.errors import CheckpointError
from waiting import HANG_S

NAME = "someone/tiny"
WEIGHTS = "model.safetensors"


@pytest.fixture(params=["hub", "modelscope"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(source: str) -> str:
    """How the checkpoint is asked for."""
    return NAME if source == "hub" else f"modelscope:{NAME}"


@pytest.fixture
def repository(
    source: str, tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Repository]:
    """A server, and this process as if it had been started with its address and an empty cache."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    reset_sessions()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)
    monkeypatch.setattr(hub_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr("megatalker.checkpoint.modelscope.POLL_SECONDS", 0.0)
    with (hub if source == "hub" else modelscope)(Repository(NAME, tiny_custom_voice.folder)) as served:
        served.files |= {"README.md": b"not needed", "samples/voice.json": b"{}"}
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", _template(served.url))
        monkeypatch.setenv("MODELSCOPE_DOMAIN", served.url)
        yield served
    reset_sessions()


def offline(monkeypatch: pytest.MonkeyPatch, value: bool) -> None:
    """Set ``HF_HUB_OFFLINE`` as if the process had been started with it; open sessions would not notice."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", value)
    reset_sessions()


def _template(url: str) -> str:
    return url + "/{repo_id}/resolve/{revision}/{filename}"


def test_what_is_needed_is_fetched_once(repository: Repository, name: str, tiny_custom_voice: Checkpoint) -> None:
    opened = Checkpoint.open(name)
    assert (opened.name, opened.fingerprint) == (name, tiny_custom_voice.fingerprint)
    fetched = [file for file, _ in repository.asked]
    assert sorted(fetched) == sorted(set(fetched))
    assert set(repository.files) - set(fetched) == {"README.md", "samples/voice.json"}
    again = Checkpoint.open(name)
    assert again.folder == opened.folder
    assert len(repository.asked) == len(fetched)


def test_a_download_goes_on_where_the_connection_broke(
    repository: Repository, name: str, tiny_custom_voice: Checkpoint
) -> None:
    repository.cut[WEIGHTS] = 40_960
    with pytest.raises(CheckpointError, match=r"broke off: .*it continues where it stopped"):
        Checkpoint.open(name)
    assert Checkpoint.open(name).fingerprint == tiny_custom_voice.fingerprint
    assert repository.ranges(WEIGHTS) == [None, "bytes=40960-"]
    assert all(len(repository.ranges(file)) <= 1 for file in repository.files if file != WEIGHTS)


def test_progress_is_shown_while_a_file_arrives(repository: Repository, name: str) -> None:
    seen: list[DownloadProgress] = []
    shown = threading.Event()
    half = len(repository.files[WEIGHTS]) // 2

    def note(state: DownloadProgress) -> None:
        seen.append(state)
        if half / 2 < state.done < state.total:
            shown.set()

    def pause(file: str, sent: int) -> None:
        if file == WEIGHTS and sent > half:
            assert shown.wait(HANG_S)

    repository.pause = pause
    Checkpoint.open(name, progress=note)
    assert shown.is_set()
    total = sum(len(content) for file, content in repository.files.items() if file in dict(repository.asked))
    assert seen[-1] == DownloadProgress(NAME, total, total)
    seen.clear()
    Checkpoint.open(name, progress=note)
    assert seen == []


def test_without_a_network_what_was_downloaded_is_used_and_nothing_else(
    repository: Repository, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline(monkeypatch, True)
    with pytest.raises(CheckpointError, match=r"cannot be reached .* Go online"):
        Checkpoint.open(name)
    offline(monkeypatch, False)
    opened = Checkpoint.open(name)
    offline(monkeypatch, True)
    assert Checkpoint.open(name).folder == opened.folder
    assert repository.asked


def test_a_site_that_does_not_answer_is_no_network(
    name: str, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Checkpoint.open(name)
    nowhere = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    monkeypatch.setenv("MODELSCOPE_DOMAIN", nowhere)
    assert Checkpoint.open(name).folder == opened.folder
    with pytest.raises(CheckpointError, match="cannot be reached"):
        Checkpoint.open(name.replace("tiny", "other"))


def test_an_unknown_repository_is_refused(name: str, repository: Repository) -> None:
    with pytest.raises(CheckpointError, match=r"no .*repository 'someone/other'.* Check the spelling"):
        Checkpoint.open(name.replace("tiny", "other"))


def test_another_kind_of_repository_is_refused_before_anything_is_fetched(name: str, repository: Repository) -> None:
    del repository.files["speech_tokenizer/config.json"]
    with pytest.raises(CheckpointError, match=r"no speech_tokenizer/config\.json"):
        Checkpoint.open(name)
    assert repository.asked == []


@pytest.mark.parametrize("source", ["modelscope"], indirect=True)
class TestModelScope:
    """Downloads from ModelScope, which the hub's own library handles for its hub."""

    def test_a_partial_download_is_not_used_offline(
        self, repository: Repository, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repository.cut[WEIGHTS] = 4_096
        with pytest.raises(CheckpointError, match="broke off"):
            Checkpoint.open(name)
        offline(monkeypatch, True)
        with pytest.raises(CheckpointError, match="has not been downloaded whole"):
            Checkpoint.open(name)

    def test_a_file_that_is_damaged_on_the_way_is_refused_and_fetched_anew(
        self, repository: Repository, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed = Repository.sha256

        def wrong(self: Repository, file: str) -> str:
            return "0" * 64 if file == WEIGHTS else listed(self, file)

        monkeypatch.setattr(Repository, "sha256", wrong)
        with pytest.raises(CheckpointError, match=r"model\.safetensors .* has the SHA-256 .* damaged on the way"):
            Checkpoint.open(name)
        monkeypatch.setattr(Repository, "sha256", listed)
        Checkpoint.open(name)
        assert repository.ranges(WEIGHTS) == [None, None]

    def test_a_file_that_has_changed_is_fetched_again(self, repository: Repository, name: str) -> None:
        fingerprint = Checkpoint.open(name).fingerprint
        before = len(repository.asked)
        repository.files["generation_config.json"] = repository.files["generation_config.json"] + b"\n"
        again = Checkpoint.open(name)
        assert [file for file, _ in repository.asked[before:]] == ["generation_config.json"]
        assert again.fingerprint != fingerprint

    def test_a_file_that_is_listed_without_a_digest_goes_by_its_revision(
        self, repository: Repository, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Repository, "identity", lambda *_: {"Revision": "a"})
        Checkpoint.open(name)
        before = len(repository.asked)
        Checkpoint.open(name)
        assert len(repository.asked) == before
        monkeypatch.setattr(Repository, "identity", lambda *_: {"Revision": "b"})
        Checkpoint.open(name)
        assert len(repository.asked) == 2 * before

    def test_a_site_that_answers_something_else_is_named(
        self, repository: Repository, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hub_server._ModelScopeHandler.find", lambda *_: {"hello": "world"})
        with pytest.raises(CheckpointError, match="check MODELSCOPE_DOMAIN"):
            Checkpoint.open(name)


@pytest.mark.slow
def test_a_mirror_is_named_by_the_environment(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    """The variable is set before the start, since the hub's library reads ``HF_ENDPOINT`` when it is imported."""
    with hub(Repository(NAME, tiny_custom_voice.folder)) as served:
        done = megatalker(
            *("inspect", NAME),
            cwd=tmp_path,
            HF_ENDPOINT=served.url,
            HF_HOME=str(tmp_path / "home"),
            NO_PROXY="127.0.0.1",
        )
        assert done.returncode == 0, done.stderr
        assert tiny_custom_voice.fingerprint in done.stdout
        assert len(served.asked) > 5
