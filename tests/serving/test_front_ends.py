"""A server of several processes: one address, limits for the whole, and deaths and other settings that harm nobody."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from websockets.sync.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from commands import COMMAND, megatalker, one_line
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine import Engine
from megatalker.serving.audio import to_pcm16
from megatalker.serving.client import RemoteEngine
from megatalker.serving.server.keyring import hash_key
from megatalker_benchmarks.ready_line import wait_until_ready
from megatalker_benchmarks.serve_process import ServeProcess
from waiting import HANG_S, eventually

pytestmark = pytest.mark.slow

TEXT = "Hello there, this is a sentence."
CONFIG = "served.toml"
MOST_CONNECTIONS = 64
ANNA = {"Authorization": "Bearer mt-anna"}
KEYS = {"one": "max_streams = 1", "few": "requests_per_minute = 3", "anna": ""}


def write_settings(folder: Path, front_ends: int = 2, **server: object) -> None:
    asked = {"front_ends": front_ends, "max_connections": MOST_CONNECTIONS} | server
    lines = ["[server]", *(f'{name} = "{value}"' for name, value in asked.items())]
    for name, limits in KEYS.items():
        lines += [f"[server.keys.{name}]", f'hash = "{hash_key("mt-" + name)}"', limits]
    new = folder / "new.toml"
    new.write_text("\n".join(lines) + "\n")
    new.rename(folder / CONFIG)


class RunningServer:
    """``megatalker serve`` in a process, with what it says."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stderr is not None
        self.process, self.folder, self.log = process, folder, ""
        self.url = wait_until_ready(process.stderr)["url"]
        self.processes = ServeProcess(self.url, psutil.Process(process.pid))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    @property
    def front_ends(self) -> set[int]:
        return {one.pid for one in self.processes.front_ends}

    @property
    def engines(self) -> set[int]:
        return {one.pid for one in self.processes.engines}

    def get(self, path: str) -> httpx.Response:
        """Ask on a connection of its own."""
        return httpx.get(self.url + path, headers={"Authorization": "Bearer mt-anna"}, timeout=HANG_S)

    def post(self, key: str = "anna", **body: object) -> httpx.Response:
        """Ask on a connection of its own."""
        asked = {"input": TEXT, "seed": 3, "max_frames": 6, "response_format": "pcm"} | body
        headers = {"Authorization": f"Bearer mt-{key}"}
        return httpx.post(self.url + "/v1/audio/speech", json=asked, headers=headers, timeout=HANG_S)

    def metric(self, name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (.*)$", self.get("/metrics").text, re.M))


@contextmanager
def served(checkpoint: Checkpoint, folder: Path, **environment: str) -> Iterator[RunningServer]:
    write_settings(folder)
    options = ["--port", "0", "--checkpoint", str(checkpoint.folder), "--backend", "reference", "--device", "cpu"]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder), "MEGATALKER_RUNAWAY_GUARD": "false"} | environment
    command = [*COMMAND, "serve", "--config", CONFIG, *options]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield RunningServer(process, folder)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(HANG_S)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def server(tiny_custom_voice: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with served(tiny_custom_voice, tmp_path_factory.mktemp("front_ends")) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tiny_custom_voice: Checkpoint) -> bytes:
    with Engine.open(checkpoint=tiny_custom_voice, backend="reference", device="cpu") as engine:
        return to_pcm16(engine.speak(TEXT, seed=3, max_frames=6).read_all())


def at_once(server: RunningServer, number: int, key: str) -> list[int]:
    with ThreadPoolExecutor(number) as callers:
        return [answer.status_code for answer in callers.map(lambda _: server.post(key), range(number))]


def test_two_processes_serve_one_address_and_count_together(server: RunningServer, expected: bytes) -> None:
    assert (len(server.front_ends), len(server.engines)) == (2, 1)
    before = server.metric("megatalker_utterances_total")
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda _: server.post(), range(24)))
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, expected)}
    eventually(lambda: server.metric("megatalker_utterances_total") == before + 24, "all are counted, whoever is asked")
    used = {pid: psutil.Process(pid).cpu_times().user for pid in server.front_ends}
    assert len(used) == 2
    assert {server.get("/ready").status_code for _ in range(8)} == {200}


def test_limits_of_keys_hold_for_all_front_ends_together(server: RunningServer) -> None:
    assert sorted(at_once(server, 12, "few")) == [200] * 3 + [429] * 9
    with RemoteEngine(server.url, api_key="mt-one") as remote, remote.speak(None):  # it waits for its text
        eventually(lambda: server.post("one").status_code == 429, "the server knows of it")
        assert at_once(server, 12, "one") == [429] * 12
    eventually(lambda: server.post("one").status_code == 200, "its utterance has ended")


def test_a_front_end_has_the_places_that_others_leave(server: RunningServer) -> None:
    """While one of the two stands still, the other one has more than its half."""
    still = min(server.front_ends)
    os.kill(still, signal.SIGSTOP)
    try:
        with ExitStack() as opened:
            for _ in range(MOST_CONNECTIONS - 1):
                opened.enter_context(connect(f"ws{server.url[4:]}/v1/speak", additional_headers=ANNA))
    finally:
        os.kill(still, signal.SIGCONT)


def test_connections_that_come_at_once_are_shared_out(server: RunningServer) -> None:
    def held(process: psutil.Process) -> int:
        return sum(one.status == psutil.CONN_ESTABLISHED for one in process.net_connections("tcp"))

    with ExitStack() as opened:
        address = httpx.URL(server.url)
        for _ in range(MOST_CONNECTIONS // 2):
            opened.enter_context(socket.create_connection((address.host, address.port or 0)))
        eventually(
            lambda: min(map(held, server.processes.front_ends)) >= MOST_CONNECTIONS // 8, "each has some of them"
        )


def test_a_token_opens_every_front_end(server: RunningServer) -> None:
    answer = httpx.post(server.url + "/v1/tokens", headers={"Authorization": "Bearer mt-anna"})
    token = answer.json()["token"]
    for _ in range(8):
        with connect(f"{server.url.replace('http', 'ws')}/v1/speak?token={token}", open_timeout=HANG_S) as talk:
            talk.send('{"type": "open", "text": "Hi.", "max_frames": 2}')
            assert '"opened"' in talk.recv(HANG_S)


def test_a_front_end_that_dies_takes_its_connections_and_nothing_else(server: RunningServer, expected: bytes) -> None:
    engines, front_ends = server.engines, server.front_ends
    with RemoteEngine(server.url, api_key="mt-anna") as remote:
        streams = [remote.speak(TEXT, seed=3, max_frames=400, return_codes=True) for _ in range(2)]
        for stream in streams:
            next(stream)
        dead = min(front_ends)
        os.kill(dead, signal.SIGKILL)
        eventually(lambda: len(server.front_ends - {dead}) == 2, "another one takes its place")
    assert server.engines == engines
    eventually(lambda: server.metric("megatalker_engine_active") == 0, "what nobody hears is not made")
    assert [server.post().content for _ in range(6)] == [expected] * 6
    assert "is gone (signal 9), with its connections" in server.log
    eventually(lambda: server.post("one").status_code == 200, "what it counted is forgotten")


def test_other_settings_are_taken_without_losing_an_utterance(server: RunningServer, expected: bytes) -> None:
    before, interleaved = server.front_ends | server.engines, server.post(layout="interleaved").content
    with asking(server) as asked, RemoteEngine(server.url, api_key="mt-anna") as remote:
        fed = remote.speak(None, seed=3, max_frames=6)
        fed.feed("Hello there, ")
        write_settings(server.folder, model="renamed")
        done = megatalker("reload", "--port", server.url.rpartition(":")[2], cwd=server.folder,
                          XDG_RUNTIME_DIR=str(server.folder))  # fmt: skip
        assert done.returncode == 0, done.stderr
        eventually(lambda: server.get("/v1/models").json()["data"][0]["id"] == "renamed", "the new ones serve")
        fed.feed("this is a sentence.")
        fed.finish()
        assert to_pcm16(fed.read_all()) == interleaved
    assert asked
    assert set(asked) == {expected}, "nobody was refused, and nobody heard anything else"
    eventually(lambda: not before & (server.front_ends | server.engines), "those of before are gone")
    assert "serving with the new settings" in server.log


@contextmanager
def asking(server: RunningServer) -> Iterator[list[bytes]]:
    """Two callers that ask without a pause; yields all that they have heard."""
    asked, stop = list[bytes](), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            asked.append(server.post().content)

    callers = [threading.Thread(target=ask) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        yield asked
    finally:
        stop.set()
        for caller in callers:
            caller.join(HANG_S)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"max_connections": "none"}, "server.max_connections"),
        ({"host": "0.0.0.0"}, "the address stays"),
        ({"voices_dir": "/nowhere"}, "the voices folder '/nowhere' does not exist"),
    ],
    ids=["setting", "address", "voices"],
)
def test_settings_that_cannot_be_used_change_nothing(
    server: RunningServer, expected: bytes, setting: dict[str, str], why: str
) -> None:
    processes, told = server.front_ends | server.engines, len(server.log)
    write_settings(server.folder, **setting)  # with its keys, which each front end follows at a time of its own
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: "goes on with the settings it had" in server.log[told:], "the log says so")
    assert re.search(why, server.log[told:])
    write_settings(server.folder)
    eventually(lambda: server.post().content == expected, "all is as it was")
    eventually(lambda: server.front_ends | server.engines == processes, "and what was begun is gone")


def test_in_turn_new_connections_wait_for_the_new_settings(server: RunningServer, expected: bytes) -> None:
    before, told = server.front_ends | server.engines, len(server.log)
    with asking(server) as asked:
        eventually(lambda: asked, "they are served")
        with RemoteEngine(server.url, api_key="mt-anna") as remote:
            fed = remote.speak(None, seed=3, max_frames=6)
            fed.feed("Hello there, ")
            write_settings(server.folder, model="in turn", reload="in_turn")
            server.process.send_signal(signal.SIGHUP)
            eventually(lambda: "new connections wait" in server.log[told:], "the old ones end")
            fed.feed("this is a sentence.")
            fed.finish()
            assert len(fed.read_all()) == 6 * FRAME_SAMPLES
        assert server.get("/v1/models").json()["data"][0]["id"] == "in turn", "it has waited"
        done = len(asked)
        eventually(lambda: len(asked) > done + 2, "the callers go on")
    assert set(asked) == {expected}, "nobody was refused, and nobody heard anything else"
    eventually(lambda: not before & (server.front_ends | server.engines), "those of before are gone")


def test_in_turn_what_cannot_be_used_gives_way_to_what_there_was(server: RunningServer, expected: bytes) -> None:
    before, told = server.front_ends | server.engines, len(server.log)
    write_settings(server.folder, reload="in_turn", voices_dir="/nowhere")
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: "serving again" in server.log[told:], "the old settings serve")
    assert re.search("goes on with the settings it had: .*voices folder '/nowhere' does not exist", server.log[told:])
    assert server.post().content == expected
    assert not before & (server.front_ends | server.engines)
    write_settings(server.folder)


def test_a_front_end_that_stands_still_is_replaced(
    tiny_custom_voice: Checkpoint, tmp_path: Path, expected: bytes
) -> None:
    with served(tiny_custom_voice, tmp_path, MEGATALKER_STEP_DEADLINE_S="3") as server:
        eventually(lambda: len(server.front_ends) == 2, "both are there")
        still = min(server.front_ends)
        os.kill(still, signal.SIGSTOP)
        eventually(lambda: still not in server.front_ends and len(server.front_ends) == 2, "another has its place")
        assert re.search("has said nothing for 1. s and is killed", server.log)
        assert [server.post().content == expected for _ in range(6)] == [True] * 6


def test_reload_says_which_server_there_is_not(tmp_path: Path) -> None:
    done = megatalker("reload", "--port", "1", cwd=tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "listens on port 1 of this machine" in one_line(done.stderr)


def test_all_processes_end_with_the_one_that_started_them(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    with served(tiny_custom_voice, tmp_path) as server:
        processes = server.front_ends | server.engines
        server.process.kill()
        eventually(lambda: not any(map(alive, processes)), "nobody needs them any more")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---- Wyoming


def wyoming_port(server: RunningServer) -> int:
    """The other port on which the supervisor listens."""
    listening = psutil.Process(server.process.pid).net_connections("inet")
    http = int(server.url.rsplit(":", 1)[1])
    (port,) = {one.laddr.port for one in listening if one.status == psutil.CONN_LISTEN} - {http}
    return port


async def first_audio(port: int) -> int:
    """Ask for speech, and return the bytes of the first chunk."""
    async with AsyncTcpClient("127.0.0.1", port, connect_timeout=HANG_S, read_timeout=HANG_S) as client:
        await client.write_event(Synthesize(text=TEXT).event())
        while (event := await client.read_event()) is not None:
            assert event.type in ("audio-start", "audio-chunk"), event
            if event.payload:
                return len(event.payload)
    return 0


async def some(port: int) -> list[int]:
    return await asyncio.gather(*(first_audio(port) for _ in range(4)))


def test_wyoming_is_served_by_every_front_end_and_after_a_reload(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    here = {"MEGATALKER_SERVER__WYOMING": "tcp://127.0.0.1:0", "MEGATALKER_SERVER__ANNOUNCE": "true"}
    with served(tiny_custom_voice, tmp_path, **here) as running:
        eventually(lambda: "announced by zeroconf" in running.log, "Home Assistant is told")
        port, before = wyoming_port(running), running.front_ends
        assert asyncio.run(some(port)) == [2 * FRAME_SAMPLES] * 4
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.front_ends and not running.front_ends & before, "other front ends serve")
        assert wyoming_port(running) == port
        assert asyncio.run(some(port)) == [2 * FRAME_SAMPLES] * 4
