"""The embedded demo: written once into the cache, by one of several processes, and mended by deleting it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megatalker import demo_checkpoint
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint_recipe import DEMO, CheckpointRecipe
from megatalker.demo_checkpoint import demo_folder
from megatalker.errors import CheckpointError
from megatalker.random_checkpoint import write_checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "megatalker"


def test_the_demo_is_written_once_and_opened_like_any_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Checkpoint.open("demo")
    assert opened.name == "demo"
    assert opened.folder == cache / f"demo-{DEMO.fingerprint}"
    assert opened.config.variant == "custom_voice"
    monkeypatch.setattr(demo_checkpoint, "write_checkpoint", None)  # a second writing would fail
    assert Checkpoint.open("demo").fingerprint == opened.fingerprint == Checkpoint.open(opened.folder).fingerprint


def test_without_a_cache_setting_it_lands_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert demo_folder().parent == tmp_path / ".cache" / "megatalker"


def test_several_writers_at_once_leave_one_whole_checkpoint(cache: Path) -> None:
    barrier = threading.Barrier(4)

    def write() -> Path:
        barrier.wait()
        return demo_folder()

    with ThreadPoolExecutor(4) as pool:
        folders = {future.result() for future in [pool.submit(write) for _ in range(4)]}
    assert len(folders) == 1
    assert [path.name for path in cache.iterdir()] == [f"demo-{DEMO.fingerprint}"]
    Checkpoint.open("demo")


def test_the_slower_writer_uses_what_the_faster_one_wrote(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = cache / f"demo-{DEMO.fingerprint}"

    def overtaken(folder: Path, recipe: CheckpointRecipe) -> Path:
        write_checkpoint(final, recipe)
        return write_checkpoint(folder, recipe)

    monkeypatch.setattr(demo_checkpoint, "write_checkpoint", overtaken)
    assert demo_folder() == final
    assert [path.name for path in cache.iterdir()] == [final.name]


def test_a_cache_that_cannot_be_written_is_explained(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match=r"cannot be written to .* XDG_CACHE_HOME"):
        Checkpoint.open("demo")


def test_an_interrupted_writing_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: Path, recipe: CheckpointRecipe) -> Path:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_checkpoint, "write_checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo_folder()
    assert not list(cache.iterdir())


def test_a_damaged_demo_says_how_to_mend_it() -> None:
    folder = Checkpoint.open("demo").folder
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"Delete '.*demo-.*', and the demo is written anew"):
        Checkpoint.open("demo")
