"""A short run of ``megatalker bench word-times``; the long one's result lies under ``benchmarks/results``."""

import json
from pathlib import Path

import pytest

from benchmark_runs import report_of
from demo_voice_helpers import espeak_files
from megatalker_backends.aligners.sphinx import load
from megatalker_benchmarks import word_times

pytestmark = pytest.mark.slow


def test_words_are_reported_near_where_they_are_spoken(tmp_path: Path) -> None:
    espeak_files(tmp_path / "espeak")  # skips where it is missing
    found = report_of("word-times", "--texts", "6", folder=tmp_path)
    assert found["texts"] == 6
    assert set(found["estimate"]) >= {"robin", "otto", "mina"}
    assert found["estimate"]["words"] >= 18
    assert found["estimate"]["median_abs_ms"] < 400
    assert found["truth_error"]["p95_abs_ms"] < 30


def test_an_aligner_is_measured_on_the_same_speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pocketsphinx")
    espeak_files(tmp_path / "espeak")
    report = tmp_path / "report.json"
    monkeypatch.setattr(word_times, "load_aligner", lambda name: load())
    monkeypatch.setattr("sys.argv", ["word-times", "--texts", "6", "--aligner", "pocketsphinx", "--json", str(report)])
    word_times.main()
    found = json.loads(report.read_text())
    assert found["pocketsphinx"]["words"] == found["estimate"]["words"]
    assert found["pocketsphinx"]["median_abs_ms"] < 30 < found["estimate"]["median_abs_ms"]
    assert found["pocketsphinx"]["processor_ms_a_frame"] > 0
    assert found["pocketsphinx"]["failed_texts"] == 0


def test_without_espeak_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["word-times", "--espeak", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"cannot be measured: .* make the folder with demo_voice/portable_espeak\.sh"):
        word_times.main()
