"""A server that is told to stop finishes what it says, refuses what is new, and waits no longer than it was told to."""

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from http_client import post
from megatalker.checkpoint import Checkpoint
from serving import ENDLESS, TEXT, Served, Server, Talk, endless, fakes_with
from waiting import HANG_S, eventually


def told(served: Served, what: signal.Signals) -> None:
    """Deliver a signal as it arrives in a process."""
    served.server.handle_exit(what, None)


def hear_ends(talk: Talk, ends: list[tuple[str, str]]) -> None:
    while True:
        message = talk.hear()
        if isinstance(message, dict) and message["type"] == "done":
            ends.append((message["id"], message["finish_reason"]))


def test_sigterm_finishes_running_speech_and_refuses_new_requests(serve: Server) -> None:
    go_on = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or go_on.wait(HANG_S)), max_streams=8)
    talk = served.talk()
    for name in ("a", "b", "c", "d"):
        talk.say("open", id=name, text=TEXT, seed=5)
    with ThreadPoolExecutor() as callers:
        responses = [callers.submit(post, served, seed=5, response_format="pcm") for _ in range(4)]
        eventually(lambda: len(served.server.service.running) == 8, "all speak")
        told(served, signal.SIGTERM)
        eventually(lambda: served.server.service.draining, "it drains")
        health = httpx.get(served.url + "/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        refused = post(served)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "CapacityError")
        assert "about to stop" in refused.json()["error"]["message"]
        assert "retry-after" in refused.headers
        go_on.set()
        spoken = [np.frombuffer(response.result().content, "<i2") for response in responses]
    ends: list[tuple[str, str]] = []
    with pytest.raises(ConnectionClosed):
        hear_ends(talk, ends)
    assert sorted(ends) == [("a", "eos"), ("b", "eos"), ("c", "eos"), ("d", "eos")]
    assert {len(samples) for samples in spoken} == {30 * 1920}
    served.thread.join(HANG_S)
    assert not served.thread.is_alive()


def test_a_drain_ends_after_its_timeout(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, server={"drain_timeout_s": 0.2})
    talk = served.talk()
    talk.say("open", text=TEXT)
    talk.hear_until("opened")
    told(served, signal.SIGTERM)
    assert talk.hear_all().last["error"]["type"] == "EngineClosedError"
    served.thread.join(HANG_S)


@pytest.mark.parametrize("signals", ["INT", "TERM TERM", "TERM INT"])
def test_sigint_and_a_second_signal_end_running_speech(serve: Server, signals: str) -> None:
    served = serve(endless(), **ENDLESS, server={"drain_timeout_s": HANG_S})
    talk = served.talk()
    talk.say("open", text=TEXT)
    talk.hear_until("opened")
    first, *later = [signal.Signals[f"SIG{name}"] for name in signals.split()]
    told(served, first)
    for again in later:
        eventually(lambda: served.server.service.draining, "it drains")
        told(served, again)
    assert talk.hear_all().last["error"]["type"] == "EngineClosedError"
    served.thread.join(HANG_S)


WARMING_FOR_EVER = """
import logging, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fake_backend import Fakes, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.serving.server.address import bind
from megatalker.serving.server.process import TalkServer
from megatalker.settings import ServerSettings

logging.basicConfig(level=logging.INFO, format="%(message)s")
own = ServerSettings(port=0)
def warm_up(self):
    print("warming up", flush=True)
    threading.Event().wait()
FakeTalker.warmup = warm_up
with bind(own) as bound, Engine.open(checkpoint=Checkpoint.open(sys.argv[2]), registry=Fakes().registry) as engine:
    server = TalkServer(engine, own, bound)
    server.run()
    print("ended in good order", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_warm_up_ends_the_process_at_once(tiny_custom_voice: Checkpoint, stop: signal.Signals) -> None:
    helpers = Path(__file__).parents[1] / "helpers"
    command = [sys.executable, "-c", WARMING_FOR_EVER, str(helpers), str(tiny_custom_voice.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == "warming up\n"
            running.send_signal(stop)
            assert running.wait(HANG_S) == -stop
            assert running.stdout.read() == "", "nothing waits for the warm-up"
        finally:
            running.kill()


SIGNAL_WHILE_A_LINE_IS_WRITTEN = """
class Stderr:
    writing = False
    def write(self, text):
        if self.writing:
            raise RuntimeError("reentrant call")
        self.writing = True
        if "startup complete" in text:
            signal.raise_signal(signal.SIGTERM)
        self.writing = False
    def flush(self):
        pass

import signal
sys.stderr = Stderr()
logging.basicConfig
"""


@pytest.mark.slow
def test_a_signal_that_comes_while_a_line_is_logged_ends_the_process_too(tiny_custom_voice: Checkpoint) -> None:
    helpers = Path(__file__).parents[1] / "helpers"
    program = WARMING_FOR_EVER.replace("logging.basicConfig", SIGNAL_WHILE_A_LINE_IS_WRITTEN.strip())
    command = [sys.executable, "-c", program, str(helpers), str(tiny_custom_voice.folder)]
    assert subprocess.run(command, timeout=HANG_S, capture_output=True).returncode == -signal.SIGTERM
