"""``megatalker voices``: what it does to the folder, and what it says of a recording."""

from pathlib import Path

import numpy as np
import pytest

from megatalker.cli import voices as command
from megatalker.errors import InvalidRequestError, SettingsError
from voice_recordings import WORDS, speech, wav


def test_voices_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"give --voices-dir, or set server\.voices_dir"):
        command.list_()
    Path("megatalker.toml").write_text('[server]\nvoices_dir = "kept"\n')
    Path("anna.wav").write_bytes(wav(speech()))
    command.add("anna", Path("anna.wav"), WORDS, summary="calm")
    assert {path.name for path in Path("kept/anna").iterdir()} == {"manifest.json", "reference.wav", "transcript.txt"}
    command.list_()
    assert "calm" in capsys.readouterr().out
    command.show("anna")
    assert "3.0 s, good" in capsys.readouterr().out
    with pytest.raises(InvalidRequestError, match="there is a voice 'anna' already"):
        command.add("anna", Path("anna.wav"), WORDS)
    with pytest.raises(InvalidRequestError, match=r"'bert\.wav' cannot be read"):
        command.add("bert", Path("bert.wav"), WORDS)
    command.remove("anna")
    assert not list(Path("kept").iterdir())
    for act in (command.show, command.remove):
        with pytest.raises(InvalidRequestError, match="there is no voice 'anna'"):
            act("anna")


def test_the_command_line_warns_of_a_poor_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    half = speech(2.4)
    Path("anna.wav").write_bytes(wav(np.concatenate([half, np.zeros(48_000, np.float32), half])))
    folder = tmp_path / "kept"
    command.add("anna", Path("anna.wav"), WORDS, voices_dir=folder)
    assert "warning: the reference audio has a pause of 2." in capsys.readouterr().err
    command.show("anna", voices_dir=folder)
    assert "good" not in capsys.readouterr().out
