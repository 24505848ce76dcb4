"""``megatalker bench`` as a user meets it."""

import json
from pathlib import Path

from commands import megatalker
from megatalker.checkpoint import Checkpoint


def test_bench_compares_in_one_run_and_writes_json_and_plot(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    done = megatalker(
        *("bench", "--compare", "reference,compiled", "--rounds", "1", "--frames", "8", "--out", "results"),
        *("--checkpoint", str(tiny_custom_voice.folder)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "results" / "bench.json").read_text())
    assert list(report["results"]) == ["reference", "compiled"]
    for metric in ("frame_ms", "prefill_ms", "ttfc_ms", "rtf", "codec_ms_1_frame", "longest_chunk_gap_ms"):
        assert report["results"]["compiled"][metric]["median"] > 0
    assert (tmp_path / "results" / "bench.png").read_bytes().startswith(b"\x89PNG")
