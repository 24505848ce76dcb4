"""The benchmark of weight formats runs, and reports every format with every number of threads."""

import json
from pathlib import Path

import pytest
from typer import BadParameter

from megatalker.checkpoint import Checkpoint
from megatalker_benchmarks import processor
from megatalker_benchmarks.processor import FORMATS, FormatResult, main


@pytest.mark.slow
def test_every_format_is_measured_beside_its_floor(
    tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "READ_BYTES", 2**20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "untouched"))
    out = tmp_path / "results"
    main([1], [*FORMATS], checkpoint=str(tiny_custom_voice.folder), frames=1, rounds=1, out=out)
    report = json.loads((out / "cpu.json").read_text())
    assert [(each["threads"], each["weights"]) for each in report["results"]] == [(1, name) for name in FORMATS]
    assert all(value > 0 for each in report["results"] for name, value in each.items() if name.endswith(("_ms", "_s")))
    floors = [each["floor_ms"] for each in report["results"]]
    assert floors == sorted(floors, reverse=True)
    assert len(report["derived"]) == len(FORMATS)
    assert not (tmp_path / "untouched" / "megatalker").exists()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(BadParameter, match="'int3', expected any of float32, bfloat16, int8, int4"):
        main([1], ["int3"])


def test_figures_of_a_frame_add_up() -> None:
    times = {"prefill_ms": 100.0, "frame_ms": 60.0, "codec_ms": 36.0, "chunk_frame_ms": 20.0}
    found = FormatResult(2, "int8", load_s=1.0, floor_ms=50.0, **times)
    assert found.rtf == pytest.approx(1.0)
    assert found.first_chunk_ms == pytest.approx(196.0)
