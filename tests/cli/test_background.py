"""Threads of commands that fail: the command says so, and waits for nothing."""

import queue
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatalker.checkpoint import hub
from megatalker.checkpoint.hub import RemoteFile
from megatalker.cli import status as status_module
from megatalker.cli.say.player import SoundPlayer
from megatalker.cli.say.standard_input import StandardInput
from megatalker.cli.status import Status
from megatalker.errors import InvalidRequestError, UnsupportedError
from waiting import HANG_S, eventually


class FedStream:
    """The part of a stream that standard input is fed to."""

    cancelled = False

    def feed(self, text: str) -> None:
        raise RuntimeError("a bug")

    def cancel(self) -> None:
        self.cancelled = True


@pytest.mark.parametrize(
    "error", [ValueError("I/O operation on closed file"), MemoryError(), OSError(5, "EIO")], ids=repr
)
def test_standard_input_that_cannot_be_read_ends_the_stream(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise error

    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(fileno=fail))
    stream = FedStream()
    reading = StandardInput(stream)  # type: ignore[arg-type]
    reading.start()
    reading.join(HANG_S)
    assert stream.cancelled
    assert isinstance(reading.error, InvalidRequestError)
    assert "cannot read standard input" in str(reading.error)


def test_a_sound_device_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Output:
        def __init__(self, **_: object) -> None: ...
        def start(self) -> None: ...
        def close(self) -> None: ...

        def write(self, _pcm: object) -> None:
            raise RuntimeError("the headphones are gone")

    monkeypatch.setitem(sys.modules, "sounddevice", types.SimpleNamespace(OutputStream=Output))
    monkeypatch.setattr("megatalker.cli.say.player.player_missing", lambda: None)
    player = SoundPlayer()
    for _ in range(3):
        player.write(np.zeros(9, dtype=np.float32))
    with pytest.raises(UnsupportedError, match=r"the headphones are gone.*not everything was played"):
        player.finish()
    player.close()
    assert "megatalker-player failed" in caplog.text


def test_a_status_line_that_cannot_be_printed_is_logged_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_line: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(status_module, "say_plainly", fail)
    with Status(log_every_s=0.001) as status:
        status.stage("loading")
        eventually(lambda: "megatalker-status failed" in caplog.text, "it is logged")


def test_what_the_caller_of_a_download_raises_about_its_progress_reaches_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(hub, "_blob_folder", lambda _repository: tmp_path)
    told: queue.SimpleQueue[object] = queue.SimpleQueue()

    def progress(state: object) -> None:
        told.put(state)
        raise RuntimeError("a bar that breaks")

    reported: Callable[..., Any] = hub._reported
    with pytest.raises(RuntimeError, match="a bar that breaks"), reported("a/b", [RemoteFile("a", 9, "b")], progress):
        told.get(timeout=HANG_S)
