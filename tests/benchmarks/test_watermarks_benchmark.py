"""A short run of ``megatalker bench watermarks``; the long one's result lies under ``benchmarks/results``."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmark_runs import report_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("perth") is None, reason="needs resemble-perth")]


def test_marked_speech_is_told_from_plain(tmp_path: Path) -> None:
    found = report_of("watermarks", "--utterances", "3", folder=tmp_path)
    assert found["utterances"] == 3
    for kind in ("demo voices", "other speeds and rates", "cloned"):
        assert found["found"][kind]["unchanged"] == "1 of 1"
        assert found["false_alarms"][kind]["unchanged"] == "0 of 1"
    assert 5 < found["snr_db"]["median"] < 40
