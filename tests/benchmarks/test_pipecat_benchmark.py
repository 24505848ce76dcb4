"""A short run of ``megatalker bench pipecat``; the long one's result lies under ``benchmarks/results``."""

from pathlib import Path

import pytest

from benchmark_runs import report_of

pytestmark = pytest.mark.slow


def test_interrupted_speech_ends_within_a_frame(tmp_path: Path) -> None:
    options = ["--backend", "compiled", "--device", "cpu", "--rounds", "2", "--sessions", "2"]
    found = report_of("pipecat", *options, folder=tmp_path, MEGATALKER_MAX_FRAMES="16")
    assert found["environment"]["backend"] == "compiled"
    assert set(found["first_audio"]) == {"speak_sentence", "answer_sentence", "speak_token", "answer_token"}
    for interruption in found["interruption"].values():
        assert interruption["stale_audio_frames"] == 0
        assert interruption.get("frames_made_after", 0) <= 1
        assert interruption["downstream"]["samples"] == 8
    for mode in ("sentence", "token"):
        assert found["2_sessions"][mode]["loop_lag"]["samples"] > 0
        assert found["2_sessions"][mode]["gaps"]["count"] >= 0
