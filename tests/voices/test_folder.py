"""The folder of voices and what else may lie in it: foreign entries, leftovers, disks that are full or read-only."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.voices import Voice
from megatalker.voices.cache import VoiceCache
from megatalker.voices.folder import (
    LEFTOVER_S,
    Manifest,
    Recording,
    StorageError,
    StorageFullError,
    VoiceExistsError,
    add_recording,
    foreign_entries,
    remove_voice,
    voices_in,
)
from megatalker.voices.library import VoiceLibrary
from megatalker.voices.voice import UnreadableVoiceError
from voice_recordings import WORDS, Samples, speech, wav
from waiting import HANG_S

GOOD = Recording(Manifest(), wav(speech()), WORDS)


@pytest.fixture
def library(tiny_base: Checkpoint, tmp_path: Path) -> Callable[[], VoiceLibrary]:
    def clone(samples: Samples, _transcript: str | None) -> Voice:
        return Voice(x_vector=torch.from_numpy(samples[2_000:2_016].copy()))

    return lambda: VoiceLibrary(tmp_path, tiny_base, VoiceCache(9, 99.0), 30.0, clone)


def unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder unreadable as ``lost+found`` is, for root too, who may be running this."""
    folder.mkdir()
    listed = Path.iterdir

    def iterdir(path: Path):  # type: ignore[no-untyped-def]
        if path == folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "lost+found": Path.mkdir,
    "@eaDir": Path.mkdir,
    "backup": Path.mkdir,
    "bad.safetensors": Path.mkdir,
    "__pycache__": Path.mkdir,
    "pipe": os.mkfifo,
    "pipe.safetensors": os.mkfifo,
    "socket.safetensors": bind,
    "gone.safetensors": lambda path: path.symlink_to("nowhere"),
    "loop.safetensors": lambda path: path.symlink_to("loop.safetensors"),
    "read me.txt": Path.touch,
    "anna.wav": Path.touch,
    os.fsdecode(b"\xff\xfe"): Path.mkdir,
    "a" * 200: Path.mkdir,
}


def test_what_is_no_voice_is_skipped_with_a_warning(
    library: Callable[[], VoiceLibrary],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_recording(tmp_path, "anna", GOOD, 30.0)
    for name, make in FOREIGN.items():
        make(tmp_path / name)
    unreadable(tmp_path / "private", monkeypatch)
    for hidden in (".DS_Store", ".git", ".anna.new", ".anna.gone", "._anna.safetensors"):
        (tmp_path / hidden).mkdir()
    voices = library()
    assert [name for name, _ in voices.items()] == ["anna"]
    assert set(foreign_entries(tmp_path)) == {*FOREIGN, "private"}
    assert all(repr(name) in caplog.text for name in FOREIGN)
    caplog.clear()
    voices.refresh()
    assert not caplog.records, "each is told once"
    voices.add("bert", GOOD)
    assert set(voices_in(tmp_path)) == {"anna", "bert"}


def test_a_voice_that_cannot_be_read_does_not_refuse_the_start_and_is_an_error_when_it_is_asked_for(
    library: Callable[[], VoiceLibrary], tmp_path: Path
) -> None:
    for name in ("anna", "bert"):
        add_recording(tmp_path, name, GOOD, 30.0)
    (tmp_path / "anna" / "reference.wav").unlink()
    os.mkfifo(tmp_path / "anna" / "reference.wav")
    voices = library()
    with pytest.raises(InvalidRequestError, match="no regular file") as refused:
        voices.get("anna")
    assert isinstance(refused.value.__cause__, UnreadableVoiceError)
    assert voices.get("bert") is not None


def test_leftovers_of_interrupted_processes_are_in_nobody_s_way_and_go(tmp_path: Path) -> None:
    old = time.time() - 2 * LEFTOVER_S
    for name in (".anna.new", ".anna.gone", ".anna.x7s9a_0q.new"):
        (tmp_path / name / "inner").mkdir(parents=True)
    os.utime(tmp_path / ".anna.new", (old, old))
    add_recording(tmp_path, "anna", GOOD, 30.0)
    remove_voice(tmp_path, "anna")
    assert {path.name for path in tmp_path.iterdir()} == {".anna.gone", ".anna.x7s9a_0q.new"}, "old ones alone"
    for path in tmp_path.iterdir():
        os.utime(path, (old, old))
    add_recording(tmp_path, "anna", GOOD, 30.0)
    assert [path.name for path in tmp_path.iterdir()] == ["anna"]


def test_of_many_uploads_of_a_name_one_wins_and_the_others_are_told_that_it_is_taken(tmp_path: Path) -> None:
    together, outcomes = threading.Barrier(8), list[str]()

    def add() -> None:
        together.wait(HANG_S)
        try:
            add_recording(tmp_path, "anna", GOOD, 30.0)
            outcomes.append("added")
        except Exception as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(outcomes) == ["VoiceExistsError"] * 7 + ["added"]
    assert [path.name for path in tmp_path.iterdir()] == ["anna"]


def test_a_voice_that_appears_while_another_is_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        if not target.exists():
            target.mkdir()
            (target / "manifest.json").write_text("{}")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(VoiceExistsError, match="there is a voice 'anna' already"):
        add_recording(tmp_path, "anna", GOOD, 30.0)
    assert (tmp_path / "anna" / "manifest.json").read_text() == "{}"
    assert len(list(tmp_path.iterdir())) == 1


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@pytest.mark.parametrize("number", [*FULL, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("step", ["mkdtemp", "write_text", "write_bytes", "rename"])
def test_a_disk_that_refuses_is_told_without_its_path_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    target = "megatalker.voices.folder.tempfile.mkdtemp" if step == "mkdtemp" else f"pathlib.Path.{step}"
    monkeypatch.setattr(target, refuse)
    with pytest.raises(StorageError, match=os.strerror(number)) as refused:
        add_recording(tmp_path, "anna", GOOD, 30.0)
    assert isinstance(refused.value, StorageFullError) == (number in FULL)
    assert str(tmp_path) not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_removal_that_the_disk_refuses_is_told_and_of_two_at_once_one_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_recording(tmp_path, "anna", GOOD, 30.0)
    with monkeypatch.context() as patch:
        patch.setattr("megatalker.voices.folder.tempfile.mkdtemp", lambda **_: _read_only(tmp_path))
        with pytest.raises(StorageError, match="cannot be removed: Read-only") as refused:
            remove_voice(tmp_path, "anna")
    assert str(tmp_path) not in str(refused.value)
    missing = list[str]()

    def remove() -> None:
        try:
            remove_voice(tmp_path, "anna")
        except InvalidRequestError as error:
            missing.append(str(error))

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len(missing) == 3
    with suppress(FileNotFoundError):
        (tmp_path / "anna").rmdir()
    assert not set(voices_in(tmp_path))


def _read_only(path: Path) -> str:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def test_a_library_looks_again_only_where_files_have_changed(
    library: Callable[[], VoiceLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_recording(tmp_path, "anna", GOOD, 30.0)
    voices, looks = library(), list[int]()
    refresh = voices.refresh
    monkeypatch.setattr(voices, "refresh", lambda: (looks.append(1), refresh()))
    voices.get("anna")  # which keeps the encoded voice
    voices.refresh_if_changed()
    assert not looks
    Voice.designed("calm").save(tmp_path / "bert.safetensors")
    voices.refresh_if_changed()
    voices.refresh_if_changed()
    assert (len(looks), "bert" in voices) == (1, True)
    (tmp_path / "anna" / "transcript.txt").write_text(WORDS + " And more.")
    voices.refresh_if_changed()
    assert len(looks) == 2
    (tmp_path / "bert.safetensors").unlink()
    voices.refresh_if_changed()
    assert "bert" not in voices
