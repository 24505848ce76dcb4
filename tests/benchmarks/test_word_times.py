"""A short run of ``megatalker bench word-times``; the long one's result lies under ``benchmarks/results``."""

from pathlib import Path

import pytest

from benchmark_runs import report_of
from demo_voice_helpers import espeak_files

pytestmark = pytest.mark.slow


def test_words_are_reported_near_where_they_are_spoken(tmp_path: Path) -> None:
    espeak_files(tmp_path / "espeak")  # skips where it is missing
    found = report_of("word-times", "--texts", "6", folder=tmp_path)
    assert found["texts"] == 6
    assert found["words"] >= 18
    assert found["median_abs_s"] < 0.4
