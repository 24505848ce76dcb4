"""A real server on a free port in a thread, and a plain WebSocket client that knows nothing but the wire format."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from websockets.sync.client import ClientConnection, connect

from fake_backend import CAPABILITIES, Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.plugins import BackendRegistry
from megatalker.serving.protocol.packets import Packet, unpack
from megatalker.serving.server.address import bind, bind_wyoming, wyoming_url
from megatalker.serving.server.process import TalkServer
from megatalker.settings import ServerSettings, Settings
from waiting import HANG_S, eventually

TEXT = "Hello there, this is a sentence of a few words."


def fakes_with(**behaviour: Any) -> Fakes:
    return Fakes(talkers={"fake": Behaviour(**behaviour)})


def endless() -> Fakes:
    """A talker that never stops by itself, at about the pace of real ones; needs :data:`ENDLESS` settings."""
    capabilities = replace(CAPABILITIES, max_positions=10**9)
    return fakes_with(frames=None, on_decode=lambda call: time.sleep(0.001), capabilities=capabilities)


ENDLESS = {"max_frames": 10**8, "max_segment_frames": 10**8, "runaway_guard": False}


def in_process(registry: BackendRegistry) -> Callable[[Settings, Checkpoint], Engine]:
    """Opens the engine of a server in this process, with fakes that a test can look at."""
    return lambda settings, checkpoint: Engine.open(settings, checkpoint=checkpoint, registry=registry)


@dataclass
class Served:
    """A running server and what is behind it."""

    server: TalkServer
    engine: Engine
    thread: threading.Thread
    sockets: ExitStack = field(default_factory=ExitStack)
    wyoming: str = ""
    """The address of Wyoming's clients."""

    @property
    def url(self) -> str:
        return self.server.url

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(HANG_S)
        assert not self.thread.is_alive(), "the server does not stop"

    def talk(self, path: str = "/v1/speak", **options: Any) -> "Talk":
        """A WebSocket, closed with the server. Where messages were left unread its client waits in vain for a farewell,
        so it does not wait for long.
        """
        patience = {"open_timeout": HANG_S, "close_timeout": 1.0}
        connection = connect(self.url.replace("http", "ws") + path, compression=None, **patience, **options)
        return Talk(self.sockets.enter_context(connection))

    def rows_free(self, fakes: Fakes) -> bool:
        return not fakes.loaded["fake"].streams and not self.engine.metrics().active


Server = Callable[..., Served]
"""Opens servers on a tiny checkpoint; takes what :func:`serving` takes after it."""


@contextmanager
def serving(
    checkpoint: Checkpoint,
    fakes: Fakes | None = None,
    server: dict[str, Any] | None = None,
    ready: bool = True,
    settings_file: Path | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Fake backends, unless ``settings`` name real ones."""
    registry = None if "backend" in settings else (fakes or Fakes()).registry
    own = ServerSettings(**{"port": 0, "shutdown_timeout_s": 5.0} | (server or {}))
    with (
        Engine.open(Settings(**{"max_untaken_s": 20.0} | settings), checkpoint=checkpoint, registry=registry) as engine,
        bind(own) as bound,
        bind_wyoming(own) or nullcontext() as wyoming,
    ):
        running = TalkServer(engine, own, bound, settings_file, wyoming=wyoming)
        served = Served(running, engine, threading.Thread(target=running.run, name="test-server"))
        served.wyoming = "" if wyoming is None else wyoming_url(wyoming)
        served.thread.start()
        try:
            if ready:
                eventually(lambda: running.started and running.service.ready, "the server is ready")
            yield served
        finally:
            served.sockets.close()
            served.stop()


class Talk:
    """One connection: JSON out, JSON and packets in."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def vanish(self) -> None:
        """Be gone without a word of farewell."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def hear(self) -> dict[str, Any] | Packet:
        message = self.socket.recv(HANG_S)
        return unpack(message) if isinstance(message, bytes) else json.loads(message)

    def hear_event(self) -> dict[str, Any]:
        event = self.hear()
        assert isinstance(event, dict), f"expected an event, got {event}"
        return event

    def hear_packet(self) -> Packet:
        packet = self.hear()
        assert isinstance(packet, Packet), f"expected audio, got {packet}"
        return packet

    def hear_until(self, *kinds: str, utterance: str = "") -> "ServerOutput":
        """Everything up to the first of these events of this utterance."""
        heard = ServerOutput()
        while True:
            message = self.hear()
            if isinstance(message, Packet):
                heard.packets.append(message)
                continue
            heard.events.append(message)
            if message["type"] in kinds and message["id"] == utterance:
                return heard

    def hear_all(self, utterance: str = "") -> "ServerOutput":
        return self.hear_until("done", "error", utterance=utterance)


@dataclass
class ServerOutput:
    events: list[dict[str, Any]] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    def pcm(self, utterance: str = "") -> np.ndarray:
        return np.concatenate([packet.pcm for packet in self.packets if packet.id == utterance])

    def codes(self, utterance: str = "") -> np.ndarray:
        return np.concatenate([packet.codes for packet in self.packets if packet.id == utterance])


def events_of(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """OpenAI's server-sent events of a request."""
    import httpx  # the lean installation has none

    body = {"input": TEXT, "response_format": "pcm", "stream_format": "sse"} | fields
    with httpx.stream("POST", served.url + "/v1/audio/speech", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        return [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
