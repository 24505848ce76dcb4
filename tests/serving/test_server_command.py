"""``megatalker serve`` as a process: it says when it is ready, serves, and stops in good order."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from commands import COMMAND, megatalker, one_line
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.errors import EngineClosedError
from megatalker.serving.audio import to_pcm16
from megatalker.serving.client import RemoteEngine
from megatalker.serving.server.address import bind
from megatalker.settings import ServerSettings
from megatalker_benchmarks.ready_line import wait_until_ready
from waiting import HANG_S

pytestmark = pytest.mark.slow


@contextmanager
def process(*options: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"MEGATALKER_SERVER__DRAIN_TIMEOUT_S": "0.5"}
    command = [*COMMAND, "serve", *options]
    running = subprocess.Popen(command, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True)
    with running:
        try:
            yield running
        finally:
            running.kill()


def line_with(running: subprocess.Popen[str], what: str) -> str:
    assert running.stderr is not None
    for line in running.stderr:
        if what in line:
            return line
    raise AssertionError(f"the process never said {what!r}")


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_warms_up_serves_and_stops(tiny_custom_voice: Checkpoint, tmp_path: Path, stop: signal.Signals) -> None:
    checkpoint = str(tiny_custom_voice.folder)
    options = ("--port", "0", "--checkpoint", checkpoint, "--backend", "reference", "--device", "cpu")
    with process(*options, cwd=tmp_path) as running:
        assert running.stderr is not None
        ready = wait_until_ready(running.stderr)
        assert ready["what"].startswith("checkpoint tiny_custom_voice, backend reference, codec ")
        url = ready["url"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert httpx.get(url + "/health").json()["status"] == "ready"
        body = {"input": "Hello there.", "seed": 3, "max_frames": 6, "response_format": "pcm"}
        response = httpx.post(url + "/v1/audio/speech", json=body, timeout=HANG_S)
        with Engine.open(checkpoint=tiny_custom_voice, backend="reference", device="cpu") as engine:
            expected = to_pcm16(engine.speak("Hello there.", seed=3, max_frames=6).read_all())
        assert response.content == expected, "same seed, same samples"
        with RemoteEngine(url) as remote:
            endless = remote.speak(None)
            endless.feed("Hello there, this is a ")
            next(endless)
            running.send_signal(stop)
            with pytest.raises(EngineClosedError):
                list(endless)
        assert running.stderr is not None
        rest = running.stderr.read()
        assert running.wait(HANG_S) == (0 if stop == signal.SIGINT else -signal.SIGTERM), rest
    assert (": stopping\n" in rest) is (stop == signal.SIGINT)
    assert ("draining for up to 0.5 s" in rest) is (stop == signal.SIGTERM)
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "turbo"], "'turbo' is not installed"),
        (["--checkpoint", "/nowhere"], "CheckpointError"),
        (["--voices-dir", "/nowhere"], "the voices folder '/nowhere' does not exist"),
        (["--port", "99999"], "server.port"),
        (["--max-streams", "0"], "max_streams"),
    ],
)
def test_bad_options_are_one_clear_error(
    options: list[str], message: str, tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    options = ["--checkpoint", str(tiny_custom_voice.folder), *options] if "--checkpoint" not in options else options
    done = megatalker("serve", "--port", "0", *options, cwd=tmp_path)
    assert done.returncode == 1
    assert message in one_line(done.stderr)
    assert "Traceback" not in done.stderr


def test_settings_come_from_file_and_environment_with_options_on_top(
    tiny_custom_voice: Checkpoint, tmp_path: Path
) -> None:
    with bind(ServerSettings(port=0)) as other:
        other.listen()
        port = other.getsockname()[1]
        (tmp_path / "megatalker.toml").write_text(
            f'checkpoint = "{tiny_custom_voice.folder}"\n[server]\nport = {port}\n'
        )
        taken = megatalker("serve", cwd=tmp_path)
        assert f"port {port}: Address already in use; choose another" in one_line(taken.stderr)
        foreign = megatalker("serve", "--host", "203.0.113.1", cwd=tmp_path, MEGATALKER_SERVER__PORT="5")
        assert "host '203.0.113.1', port 5" in one_line(foreign.stderr)
        misspelt = megatalker("serve", cwd=tmp_path, MEGATALKER_SERVER__PROT="5")
        assert "unknown setting 'server.prot'" in one_line(misspelt.stderr)


@pytest.mark.parametrize("verbose", [False, True])
def test_its_start_is_two_lines_unless_more_is_asked_for(
    tiny_custom_voice: Checkpoint, tmp_path: Path, verbose: bool
) -> None:
    options = ("--port", "0", "--checkpoint", str(tiny_custom_voice.folder), "--backend", "compiled", "--device", "cpu")
    environment = os.environ | {"MEGATALKER_BACKENDS__COMPILED__COMPILE": "off"}
    command = [*COMMAND, *(["--verbose"] if verbose else []), "serve", *options]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        lines = []
        for line in running.stderr:
            lines.append(line)
            if ": ready at http" in line:
                break
        running.kill()
    assert ": listening at http" in lines[0]
    assert ": ready at http" in lines[-1]
    assert (len(lines) == 2) is not verbose
