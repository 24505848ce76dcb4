"""Settings files that are odd: each ends with one clear error, and none is waited for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from megatalker.errors import SettingsError
from megatalker.settings import Settings, key_names


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FILE = Path("megatalker.toml")


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02\x01\x01\0",
        b"\0" * 20,
        b"\xff\xfeb\0a\0",
        b"voice = '\x00'",
        b"max_streams = " + b"9" * 5000,
        b"a = " + b"[" * 50_000,
        b"server = 3",
        b"server = [1]",
        b"[server]\nkeys = 3",
        b"[server.keys]\nanna = 3",
        b"backends = 3",
        b"[backends]\ncompiled = 3",
        b"fallbacks = 3",
        b"checkpoint = 3",
        b"[server]\nvoices_dir = 3",
        b'[server]\nvoices_dir = "a\\u0000b"',
        b'[server]\ntls_key = ""',
        b"[ray]\ngpus = nan",
        b"agent = 1979-05-27",
    ],
    ids=lambda content: repr(content[:24]),
)
def test_odd_content_is_a_clear_error(content: bytes) -> None:
    FILE.write_bytes(content)
    for file in (None, FILE):
        with pytest.raises(SettingsError, match=r"setting"):
            Settings.read(file)


def socket_at(path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "found"),
    [(Path.mkdir, "folder"), (os.mkfifo, "pipe"), (socket_at, "socket")],
    ids=["dir", "fifo", "socket"],
)
def test_what_is_no_file_is_a_clear_error(make: Callable[[Path], None], found: str) -> None:
    make(FILE)
    for read in (Settings.read, lambda: Settings.read(FILE)):
        with pytest.raises(SettingsError, match=f"'megatalker.toml' is a .*{found}.*, expected a file"):
            read()


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000, "nowhere", "megatalker.toml/below"])
def test_impossible_paths_are_clear_errors(name: str) -> None:
    FILE.touch()
    with pytest.raises(SettingsError, match=r"settings file .* (does not exist|cannot be read)"):
        Settings.read(Path(name))


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("", {"carl"}),
        ("[server.keys.anna]\nhash = 'short'\n[server.keys.bert]\n", {"anna", "bert", "carl"}),
        ("[server]\nport = 'x'\n", {"carl"}),
        ("server = 3", None),
        ("[server]\nkeys = 3", None),
        ("[[[", None),
    ],
)
def test_names_of_keys_are_known_whatever_else_is_wrong(
    content: str, names: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATALKER_SERVER__KEYS__CARL__HASH", "x")
    FILE.write_text(content)
    if names is not None:
        assert key_names(FILE) == names
        return
    with pytest.raises(SettingsError):
        key_names(FILE)
