"""The commands as a user meets them: real engine, tiny checkpoints, a real file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from megatalker.checkpoint import Checkpoint
from waiting import PROCESS_S

pytestmark = pytest.mark.slow


def megatalker(*arguments: str, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from megatalker.cli.main import run; run()", *arguments]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=PROCESS_S, check=False)


def test_say_writes_a_playable_file_and_reports(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    done = megatalker("say", "Hello there.", "--out", "out.wav", "--checkpoint", folder, "--seed", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    info = soundfile.info(tmp_path / "out.wav")
    assert (info.samplerate, info.channels) == (24_000, 1)
    assert info.frames > 0
    assert info.frames % 1920 == 0
    for fact in ("TTFC", "RTF", "backend ", "seed 3", "ended by"):
        assert fact in done.stderr
    assert done.stdout == ""


def test_say_reads_standard_input(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        arguments = ("say", "-", "-o", name, "--checkpoint", str(tiny_custom_voice.folder), "--seed", "3")
        done = megatalker(*arguments, cwd=tmp_path, stdin="Hello\nthere.\n")
        assert done.returncode == 0, done.stderr
    first, second = (soundfile.read(tmp_path / name)[0] for name in ("a.wav", "b.wav"))
    assert len(first) == len(second) > 0
    assert np.abs(first - second).max() <= 2 / 2**15, "one step of 16 bits: chunks may be cut elsewhere"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["say", "   "], "InvalidRequestError"),
        (["say", "Hi", "--backend", "turbo"], "'turbo' is not installed; installed: compiled, megakernel, reference"),
        (["say", "Hi", "--backend", "megakernel"], "'megakernel' cannot run here: needs a CUDA GPU"),
        (["say", "Hi", "--voice", "nobody"], "nobody"),
        (["say", "Hi", "--language", "klingon"], "klingon"),
        (["say", "Hi", "--checkpoint", "/nowhere"], "CheckpointError"),
        (["say", "Hi", "--device", "tpu"], "device is 'tpu', expected auto, cpu, cuda or cuda:N"),
        (["say", "Hi", "--ref-text", "x"], "--ref-text goes with --ref-audio"),
        (["say", "Hi", "--ref-audio", "missing.wav"], "cloning needs a base"),
        (["inspect", "/nowhere"], "CheckpointError"),
        (["bench", "--compare", "reference,nothing"], "'nothing' is not installed"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], message: str, tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    if arguments[0] != "inspect" and "--checkpoint" not in arguments:
        arguments = [*arguments, "--checkpoint", str(tiny_custom_voice.folder)]
    done = megatalker(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_cloned_voice_can_be_kept_and_used_again(tiny_base: Checkpoint, tmp_path: Path) -> None:
    rate = 16_000
    tone = 0.3 * np.sin(2 * np.pi * 220 * np.arange(2 * rate) / rate)
    soundfile.write(tmp_path / "voice.wav", tone, rate)
    say = ("say", "Hello there.", "--checkpoint", str(tiny_base.folder), "--seed", "5")
    reference = ("--ref-audio", "voice.wav", "--ref-text", "Good morning.", "--save-voice", "kept.voice")
    for arguments in ((*reference, "-o", "a.wav"), ("--voice", "kept.voice", "-o", "b.wav")):
        done = megatalker(*say, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    first, second = (soundfile.read(tmp_path / name)[0] for name in ("a.wav", "b.wav"))
    assert len(first) == len(second) > 0
    assert np.abs(first - second).max() <= 2 / 2**15
    missing = megatalker(*say, "--ref-audio", "missing.wav", cwd=tmp_path)
    assert missing.returncode == 1
    assert "missing.wav" in missing.stderr


def test_backends_lists_what_can_run_and_why_not(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    done = megatalker("backends", "--checkpoint", str(tiny_custom_voice.folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("compiled", "reference", "streaming", "available", "rank"):
        assert word in done.stdout
    names = megatalker("backends", "--names", "--checkpoint", str(tiny_custom_voice.folder), cwd=tmp_path)
    assert names.stdout.split() == ["compiled", "reference"]


def test_inspect_shows_shapes_and_sizes(tiny_1b7: Checkpoint, tmp_path: Path) -> None:
    done = megatalker("inspect", str(tiny_1b7.folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("hidden_size", "code predictor", "codec decoder", "accepted by", *tiny_1b7.config.speakers):
        assert word in done.stdout


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


def test_settings_file_of_the_working_directory_counts(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "megatalker.toml").write_text(f'checkpoint = "{tiny_custom_voice.folder}"\nbackend = "reference"\n')
    done = megatalker("say", "Hi.", "--seed", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "backend reference" in done.stderr
    assert (tmp_path / "speech.wav").is_file()


def test_verbose_says_which_backend_and_why(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    done = megatalker("--verbose", "say", "Hi.", "-o", "x.wav", "--checkpoint", folder, cwd=tmp_path)
    assert "talker backend: compiled" in " ".join(done.stderr.split())
