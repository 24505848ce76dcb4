"""Where ``megatalker say`` writes: standard output for pipes, and what happens when nothing more can be written."""

import io
import os
import pty
import re
import subprocess
import sys
import wave
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from commands import COMMAND, error_of, megatalker, one_line
from megatalker.checkpoint import Checkpoint
from megatalker.cli.say.destination import Destination, OutputError
from megatalker.cli.say.formats import STREAMED, Format
from megatalker.errors import InvalidRequestError
from waiting import HANG_S

SAY = ("say", "Hello there.", "--seed", "3", "--checkpoint")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights may go on for minutes."""
    monkeypatch.setenv("MEGATALKER_MAX_FRAMES", "20")


@pytest.mark.usefixtures("short")
def test_standard_output_is_the_wav_and_nothing_else(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    piped = megatalker(*SAY, folder, "-o", "-", cwd=tmp_path, raw=True)
    assert piped.returncode == 0, piped.stderr
    to_file = megatalker(*SAY, folder, "-o", "x.wav", cwd=tmp_path)
    assert to_file.stdout == ""
    expected, rate = soundfile.read(tmp_path / "x.wav", dtype="int16")
    data = np.frombuffer(piped.stdout[piped.stdout.index(b"data") + 8 :], "<i2")
    assert piped.stdout[:4] == b"RIFF"
    assert (rate, len(data)) == (24_000, len(expected))
    assert np.abs(data.astype(int) - expected).max() <= 2, "chunks may be cut elsewhere"
    assert list(tmp_path.iterdir()) == [tmp_path / "x.wav"]


@pytest.mark.usefixtures("short")
def test_pcm_is_the_bare_samples(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    folder = str(tiny_custom_voice.folder)
    for target in ("-", None):
        out = () if target is None else ("-o", target)
        done = megatalker(*SAY, folder, "--format", "pcm", *out, cwd=tmp_path, raw=True)
        assert done.returncode == 0, done.stderr
        data = (tmp_path / "speech.pcm").read_bytes() if target is None else done.stdout
        assert len(data) > 0
        assert len(data) % (1920 * 2) == 0
        assert data[:4] != b"RIFF"


SOUND = (0.3 * np.sin(2 * np.pi * 220 * np.arange(24_000) / 24_000)).astype(np.float32)


@pytest.mark.parametrize("name", ["x.mp3", "x.FLAC", "x.ogg", "x.opus", "x.m4a", "x.aac", "x.wav", "x.raw", "x"])
def test_the_ending_of_a_file_names_its_format(name: str, tmp_path: Path) -> None:
    destination = Destination(str(tmp_path / name), play=False)
    for part in np.array_split(SOUND, 7):
        destination.write(part)
    destination.finish()
    if name == "x.raw":
        assert (tmp_path / name).stat().st_size == 2 * len(SOUND)
        return
    with av.open(tmp_path / name) as file:
        found = file.format.name
        samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
    expected = {"mp3": "mp3", "flac": "flac", "ogg": "ogg", "opus": "ogg", "m4a": "mp4", "aac": "aac"}
    assert expected.get(name.rpartition(".")[2].lower(), "wav") in found
    rate = 48_000 if name in ("x.ogg", "x.opus") else 24_000  # in which FFmpeg decodes Opus
    assert len(samples) / rate == pytest.approx(1.0, abs=0.1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("kind", [kind for kind in Format if kind not in STREAMED])
def test_a_full_disk_is_told_for_every_format(kind: Format) -> None:
    def write(seconds: int) -> None:
        destination = Destination("/dev/full", kind=kind, play=False)
        try:
            for _ in range(seconds):
                destination.write(SOUND)
            destination.finish()
        finally:
            destination.close()

    for seconds in (1, 50):
        with pytest.raises(OutputError, match="cannot write /dev/full"):
            write(seconds)


def test_aac_without_its_library_is_refused_with_what_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "megatalker.serving.server.encoding", None)
    with pytest.raises(InvalidRequestError, match=r"megatalker\[server\].* or write mp3, opus, flac or wav"):
        Destination(str(tmp_path / "x.m4a"), play=False).write(SOUND)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "flags", [pytest.param(os.O_TRUNC, id=">", marks=pytest.mark.slow), pytest.param(os.O_APPEND, id=">>")]
)
def test_standard_output_may_be_a_file(flags: int, tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    target = os.open(tmp_path / "x.wav", os.O_CREAT | os.O_WRONLY | flags)
    done = subprocess.run(
        [*COMMAND, *SAY, str(tiny_custom_voice.folder), "-o", "-"],
        cwd=tmp_path,
        stdout=target,
        stderr=subprocess.PIPE,
        timeout=HANG_S,
    )
    os.close(target)
    assert done.returncode == 0, done.stderr.decode()
    data = (tmp_path / "x.wav").read_bytes()
    assert data.count(b"RIFF") == 1
    with wave.open(io.BytesIO(data)) as file:
        assert len(file.readframes(1 << 30)) == len(data) - data.index(b"data") - 8


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*COMMAND, "say", "-", "--checkpoint", str(tiny_custom_voice.folder), "-o", "-"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdin.write(b"Hello there, this is a sentence. " * 20)
        running.stdin.flush()
        assert len(running.stdout.read(100)) == 100
        running.stdout.close()
        said = running.stderr.read().decode()
        assert running.wait(HANG_S) == 141, said
    assert not re.search("error|Traceback|Exception|kept", said, re.IGNORECASE)


def test_a_terminal_gets_no_samples(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, *SAY, str(tiny_custom_voice.folder), "-o", "-"],
        cwd=tmp_path,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 1
    assert "standard output is a terminal, expected a pipe or a file" in one_line(done.stderr)


@pytest.mark.usefixtures("short")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("format_", ["wav", "pcm"])
def test_a_full_disk_is_one_clear_line(format_: str, tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    arguments = (*SAY, str(tiny_custom_voice.folder), "-o", "/dev/full", "--format", format_)
    done = megatalker(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    expected = "error: OutputError: cannot write /dev/full: No space left on device; nothing had been spoken"
    assert error_of(done.stderr) == expected


@pytest.mark.usefixtures("short")
@pytest.mark.slow
def test_a_disk_that_fills_keeps_what_fitted(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; its signal is ignored by Python."""
    import resource

    room = 44 + 3 * 1920 * 2 + 100
    text = "Hello there, this is a longer sentence, and it goes on for quite some time."
    done = subprocess.run(
        [*COMMAND, "say", text, "--min-new-tokens", "30", "--checkpoint", str(tiny_custom_voice.folder), "-o", "x.wav"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 1
    kept = soundfile.info(tmp_path / "x.wav").duration
    assert 0 < kept <= 3 * 0.08
    assert f"cannot write x.wav: File too large; {kept:.1f} s of speech are kept in x.wav" in one_line(done.stderr)
    assert "Traceback" not in done.stderr
