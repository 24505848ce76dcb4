"""``megatalker say -``: text is spoken while it arrives; what is no text is one clear error, and never a hang."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile

from commands import COMMAND, error_of, megatalker, one_line
from megatalker.checkpoint import Checkpoint
from waiting import HANG_S


@contextmanager
def listening(*arguments: str, cwd: Path, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A process whose standard input stays open, and which Ctrl-C reaches even where the tests run in the background:
    a shell lets what it starts there ignore it.
    """
    running = subprocess.Popen(
        [*COMMAND, "--verbose", "say", "-", *arguments],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )
    with running:
        try:
            yield running
        finally:
            running.kill()


def wait_for_speech(running: "subprocess.Popen[bytes]") -> bytes:
    """Blocks until the first samples of ``-o -`` have come."""
    assert running.stdout is not None
    return os.read(running.stdout.fileno(), 1 << 16)


def frames_of(file: Path) -> int:
    """Sampling frames of speech that its header tells of; 0 while there is none."""
    try:
        return soundfile.info(file).frames
    except soundfile.LibsndfileError:
        return 0


def test_pieces_and_newlines_do_not_change_what_is_said(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    for name, text in (("a.wav", "Hello\nthere.\n"), ("b.wav", "Hello\r\nthere.\r\n")):
        arguments = ("say", "-", "-o", name, "--checkpoint", str(tiny_custom_voice.folder), "--seed", "3")
        done = megatalker(*arguments, cwd=tmp_path, stdin=text)
        assert done.returncode == 0, done.stderr
    first, second = (soundfile.read(tmp_path / name)[0] for name in ("a.wav", "b.wav"))
    assert len(first) == len(second) > 0
    assert np.abs(first - second).max() <= 2 / 2**15, "one step of 16 bits: chunks may be cut elsewhere"


@pytest.mark.slow
def test_characters_may_be_split_over_reads(
    tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGATALKER_SHORT_SPEECH", "believe")  # random weights say nothing of the text
    options = ("--checkpoint", str(tiny_custom_voice.folder), "-o", "-", "--format", "pcm", "--seed", "3")
    with listening(*options, cwd=tmp_path, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        running.stdin.write("Hello there, naïve caf".encode() + "é".encode()[:1])
        running.stdin.flush()
        assert wait_for_speech(running), "it speaks while text still arrives, and so has read the first half"
        running.stdin.write("é".encode()[1:] + b" goers.")
        _, said = running.communicate(timeout=HANG_S)
    assert running.returncode == 0, said.decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the text is empty"),
        (b" \n\t\n", "the text is empty"),
        (b"... !\n", "nothing to say in standard input"),
        (b"Hello \xff there", "standard input is not UTF-8 at byte 6 (invalid start byte); expected UTF-8 text"),
        (b"\xef\xbb\xbfHello \xff there", "standard input is not UTF-8 at byte 9"),
        (b"\xef\xbb\xbf \n", "the text is empty"),
        (b"Hello \xc3", "standard input is not UTF-8 at byte 6 (unexpected end of data)"),
        (b"word " * 4_001, "20005 characters"),
        (b"Hello \x00 there", "a NUL character"),
    ],
)
def test_what_cannot_be_spoken_is_one_clear_line(
    text: bytes, message: str, tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    raw = ("--raw-text",) if b"\x00" in text else ()
    done = megatalker(
        *("say", "-", *raw, "-o", "x.wav", "--checkpoint", str(tiny_custom_voice.folder)),
        cwd=tmp_path,
        stdin=text,
    )
    assert done.returncode == 1
    assert error_of(done.stderr).startswith("error: InvalidRequestError: ")
    assert message in error_of(done.stderr)
    assert "Traceback" not in done.stderr
    if not text.strip():
        same = megatalker("say", "", "--checkpoint", str(tiny_custom_voice.folder), cwd=tmp_path)
        assert error_of(same.stderr) == error_of(done.stderr)
        assert not (tmp_path / "x.wav").exists()


@pytest.mark.slow
def test_what_was_spoken_before_is_kept(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    options = ("--checkpoint", str(tiny_custom_voice.folder), "-o", "-", "--format", "pcm")
    with listening(*options, cwd=tmp_path, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        running.stdin.write(b"Hello there, this is a sentence. ")
        running.stdin.flush()
        assert wait_for_speech(running)
        running.stdin.write(b"\xff")
        _, said = running.communicate(timeout=HANG_S)
    assert running.returncode == 1
    assert "not UTF-8 at byte 33" in one_line(said.decode())
    assert "s of speech went to standard output" in one_line(said.decode())


@pytest.mark.parametrize("spoken", [True, False], ids=["while speaking", "before any text"])
@pytest.mark.slow
def test_ctrl_c_ends_it_though_standard_input_never_ends(
    spoken: bool, tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    target = tmp_path / "x.wav"
    with listening("--checkpoint", str(tiny_custom_voice.folder), "-o", str(target), cwd=tmp_path) as running:
        assert running.stdin is not None
        assert running.stderr is not None
        if spoken:
            running.stdin.write(b"Hello there, this is a sentence. ")
            running.stdin.flush()
            while not frames_of(target):
                assert running.poll() is None
                time.sleep(0.05)
        else:
            while b"talker backend" not in running.stderr.readline():
                assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(HANG_S) == 130
        said = running.stderr.read().decode()
    assert "Traceback" not in said
    if spoken:
        seconds = soundfile.info(target).duration
        assert f"interrupted; {seconds:.1f} s of speech are kept in {target}" in said
        assert seconds > 0
    else:
        assert "interrupted; nothing had been spoken" in said
        assert not target.exists()


@pytest.mark.slow
def test_closed_standard_input_is_an_error(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "say", "-", "--checkpoint", str(tiny_custom_voice.folder)],
        cwd=tmp_path,
        preexec_fn=lambda: os.close(0),
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 1
    assert "standard input is closed" in one_line(done.stderr)
