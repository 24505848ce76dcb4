"""A server process that is stopped and continued, as by ``docker pause``: nobody is given up for it."""

import os
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from commands import COMMAND
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.serving.client import RemoteEngine
from megatalker_benchmarks.ready_line import wait_until_ready
from waiting import eventually

pytestmark = pytest.mark.slow

PAUSE_S = 2.5
"""Longer than every deadline below."""
DEADLINES = {
    "MEGATALKER_STEP_DEADLINE_S": "1",
    "MEGATALKER_MAX_WAIT_S": "2",
    "MEGATALKER_MAX_STREAMS": "1",
    "MEGATALKER_MAX_UNTAKEN_S": "1",
    "MEGATALKER_SERVER__TEXT_TIMEOUT_S": "2",
    "MEGATALKER_SERVER__SEND_TIMEOUT_S": "2",
    "MEGATALKER_SERVER__REQUEST_TIMEOUT_S": "2",
}


def pause(process: subprocess.Popen[str]) -> None:
    server = psutil.Process(process.pid)
    everybody = [server, *server.children(recursive=True)]
    for one in everybody:
        one.suspend()
    eventually(lambda: all(one.status() == psutil.STATUS_STOPPED for one in everybody), "all stand still")
    time.sleep(PAUSE_S)
    for one in everybody:
        one.resume()


def test_a_server_that_is_stopped_again_and_again_goes_on_speaking(
    tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    checkpoint = str(tiny_custom_voice.folder)
    options = ["--port", "0", "--checkpoint", checkpoint, "--backend", "reference", "--device", "cpu"]
    command, environment = [*COMMAND, "serve", *options], os.environ | DEADLINES
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            url = wait_until_ready(running.stderr)["url"]
            with RemoteEngine(url) as remote:
                stream = remote.speak("Hello there, this is a sentence.", seed=3, max_frames=120)
                frames = 0
                for number, chunk in enumerate(stream):
                    frames += chunk.frames
                    if number in (1, 4, 7):
                        pause(running)
                assert frames == 120 or stream.finish_reason == "eos"
                assert stream.switches == ()
                fed = remote.speak(None, seed=3, max_frames=6)
                fed.feed("Hello there, ")
                pause(running)
                fed.feed("this is a sentence.")
                fed.finish()
                assert fed.read_all().size == 6 * FRAME_SAMPLES
            ready = httpx.get(url + "/ready").json()
            assert ready["status"] == "ready"
            assert httpx.get(url + "/health").json()["backend"] == "reference"
        finally:
            running.kill()
            said = running.stderr.read()
    assert "faulty" not in said, said
