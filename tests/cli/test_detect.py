"""``megatalker detect``: which marks a file has."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from megatalker.cli.main import app
from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.plugins.watermark import WatermarkModel, WatermarkPlugin
from megatalker.serving import detection
from megatalker.serving.audio import SYNTHETIC, WavWriter
from megatalker.serving.server.encoding import ResponseFormat, make_encoder
from scripted_watermark import ADDED, ScriptedWatermark

SOUND = (0.2 * np.sin(2 * np.pi * 220 * np.arange(24_000) / 24_000)).astype(np.float32)


def refuse() -> WatermarkModel:
    raise UnsupportedError("its weights are missing")


def fetch() -> WatermarkModel:
    FETCHED.append("weights")
    return ScriptedWatermark()


FETCHED: list[str] = []
PLUGINS = {
    "scripted": WatermarkPlugin("scripted", "adds a quarter", 2, 0.5, ScriptedWatermark),
    "missing": WatermarkPlugin("missing", "has no weights", 0, 0.5, refuse),
    "far": WatermarkPlugin("far", "has weights elsewhere", 0, 0.5, fetch, lambda: "https://hub.example/weights"),
}


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    FETCHED.clear()
    monkeypatch.setattr(detection, "watermark_names", lambda: list(PLUGINS))
    monkeypatch.setattr(detection, "find_watermark", PLUGINS.__getitem__)


def wav(path: Path, samples: np.ndarray, comment: str | None = None) -> Path:
    with WavWriter(path, comment=comment) as writer:
        writer.write(samples)
    return path


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["detect", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_all_marks_are_told(tmp_path: Path) -> None:
    told = output(str(wav(tmp_path / "x.wav", SOUND + ADDED, SYNTHETIC)))
    assert "metadata: says that it is synthetic" in told
    assert "watermark scripted: found in 1 of 1 pieces (confidence 1.00)" in told
    assert "watermark missing: not looked for: its weights are missing" in told


def test_a_plain_file_has_none(tmp_path: Path) -> None:
    told = output(str(wav(tmp_path / "x.wav", SOUND)))
    assert "metadata: no mark" in told
    assert "watermark scripted: no mark (confidence 0.00)" in told


def test_json_has_all_of_it(tmp_path: Path) -> None:
    found = json.loads(output(str(wav(tmp_path / "x.wav", SOUND + ADDED)), "--json", "--watermark", "scripted"))
    assert found["seconds"] == 1.0
    assert found["comment"] is None
    assert [(one["name"], one["pieces"], one["marked"]) for one in found["watermarks"]] == [("scripted", 1, 1)]


def test_each_half_minute_is_looked_at(tmp_path: Path) -> None:
    samples = np.concatenate([np.tile(SOUND, 30), np.tile(SOUND, 30) + ADDED, SOUND[:2400]])
    (found,) = detection.inspect_file(wav(tmp_path / "x.wav", samples), ["scripted"]).watermarks
    assert (found.pieces, found.marked, found.confidence) == (2, 1, 1.0)


@pytest.mark.parametrize("kind", ["mp3", "opus", "aac", "flac", "wav"])
@pytest.mark.parametrize("comment", [SYNTHETIC, None])
def test_the_comment_of_every_container_is_found(kind: ResponseFormat, comment: str | None, tmp_path: Path) -> None:
    encoder = make_encoder(kind, comment=comment)
    (tmp_path / "x").write_bytes(encoder.encode(SOUND) + encoder.finish())
    assert detection.inspect_file(tmp_path / "x", []).comment == comment


def test_a_watermark_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="its weights are missing"):
        detection.inspect_file(wav(tmp_path / "x.wav", SOUND), ["missing"])


def test_nothing_is_downloaded_unless_it_is_asked_for(tmp_path: Path) -> None:
    file = str(wav(tmp_path / "x.wav", SOUND + ADDED))
    told = output(file)
    assert "watermark far: not looked for: the watermark 'far' would download https://hub.example/weights; " in told
    assert "allow it with --download" in told
    assert "watermark scripted: found" in output(file, "--watermark", "scripted")
    with pytest.raises(UnsupportedError, match="would download https://hub"):
        detection.inspect_file(Path(file), ["far"])
    assert FETCHED == []
    assert "watermark far: found in 1 of 1 pieces" in output(file, "--watermark", "far", "--download")
    assert FETCHED == ["weights"]


def test_what_is_no_audio_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_text("no audio")
    with pytest.raises(InvalidRequestError, match="is not audio that can be read"):
        detection.inspect_file(tmp_path / "x.wav", [])
    with pytest.raises(InvalidRequestError, match="no such audio file"):
        detection.inspect_file(tmp_path / "y.wav", [])
    with pytest.raises(InvalidRequestError, match=r"shorter than 0\.5 s"):
        detection.inspect_file(wav(tmp_path / "z.wav", SOUND[:2400]), [])
