"""``megatalker keys``: keys are shown once and kept as hashes, in a file that stays as people wrote it."""

import stat
from pathlib import Path

import pytest

from megatalker.cli.keys import add, list_, remove
from megatalker.errors import SettingsError
from megatalker.serving.server.keyring import hash_key
from megatalker.settings import Settings

WRITTEN = """# ours
voice = "ryan"  # the usual one

[server]
port = 81  # not 8000
"""


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_key_is_printed_once_and_its_hash_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("megatalker.toml")
    file.write_text(WRITTEN)
    add("anna", max_streams=2, requests_per_minute=60)
    key = capsys.readouterr().out.strip()
    assert len(key) > 40
    text = file.read_text()
    assert text.startswith(WRITTEN.rstrip())
    assert key not in text
    own = Settings.read().server.keys["anna"]
    assert (own.hash, own.max_streams, own.requests_per_minute, own.manage_voices) == (hash_key(key), 2, 60, False)
    add("bert", manage_voices=True)
    assert capsys.readouterr().out.strip() != key
    list_()
    shown = capsys.readouterr().out
    assert "anna" in shown
    assert "bert" in shown
    assert own.hash[:20] not in shown
    remove("anna")
    remove("bert")
    assert Settings.read().server.keys == {}
    assert Settings.read().server.port == 81


def test_a_file_is_made_where_there_is_none_and_others_may_not_read_it() -> None:
    add("anna", config=Path("other.toml"))
    assert list(Settings.read(Path("other.toml")).server.keys) == ["anna"]
    assert not Path("megatalker.toml").exists()
    assert stat.S_IMODE(Path("other.toml").stat().st_mode) & 0o077 == 0


def test_what_cannot_be_done_is_said_and_changes_nothing() -> None:
    add("anna")
    before = Path("megatalker.toml").read_text()
    with pytest.raises(SettingsError, match="has a key 'anna'; choose another name"):
        add("anna")
    with pytest.raises(SettingsError, match="has no key 'bert'; it has anna"):
        remove("bert")
    assert Path("megatalker.toml").read_text() == before
    Path("megatalker.toml").write_text("voise = 'ryan'\n")
    with pytest.raises(SettingsError, match="unknown setting 'voise'"):
        add("anna")


@pytest.mark.parametrize("name", ["api_key", "anonymous", "", " anna", "a\nb", "mt-" + "a" * 43])
def test_a_name_that_no_server_accepts_is_refused_and_writes_nothing(name: str) -> None:
    with pytest.raises(SettingsError, match=r"key cannot be named|itself a key"):
        add(name)
    assert not list(Path().iterdir())
    Path("megatalker.toml").write_text(WRITTEN)
    with pytest.raises(SettingsError, match=r"key cannot be named|itself a key"):
        add(name)
    assert Path("megatalker.toml").read_text() == WRITTEN
    assert [path.name for path in Path().iterdir()] == ["megatalker.toml"]


@pytest.mark.parametrize(
    "written", ["server = {port = 81}\n", "[server]\nport = 81\nkeys = {}\n", "[server]\nport = 81"]
)
def test_keys_are_added_to_tables_however_they_are_written(written: str) -> None:
    file = Path("megatalker.toml")
    file.write_text(written)
    file.chmod(0o640)
    for name in ("anna", "a.b", 'ü"'):
        add(name)
    remove("anna")
    assert list(Settings.read().server.keys) == ["a.b", 'ü"']
    assert Settings.read().server.port == 81
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_link_to_a_settings_file_stays_one_and_a_folder_in_its_place_is_told() -> None:
    Path("real.toml").write_text(WRITTEN)
    Path("megatalker.toml").symlink_to("real.toml")
    add("anna")
    assert Path("megatalker.toml").is_symlink()
    assert "anna" in Path("real.toml").read_text()
    Path("folder.toml").mkdir()
    with pytest.raises(SettingsError, match="is a folder, expected a file"):
        add("anna", config=Path("folder.toml"))
    with pytest.raises(SettingsError, match="cannot be written"):
        add("anna", config=Path("nowhere/megatalker.toml"))
