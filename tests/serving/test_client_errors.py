"""``RemoteEngine`` when something is wrong: what the server refuses, networks that fail, the end."""

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect as connect_socket
from websockets.sync.server import ServerConnection

from client_stage import Pair, rogue_server
from megatalker.checkpoint import Checkpoint
from megatalker.errors import (
    BackendFaultError,
    CapacityError,
    ConnectionFailedError,
    EngineClosedError,
    InvalidRequestError,
    SettingsError,
)
from megatalker.serving.client import RemoteEngine
from serving import ENDLESS, TEXT, endless, fakes_with, serving
from waiting import HANG_S, eventually

# ---- errors


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        ({"text": "  "}, "the text is empty"),
        ({"voice": "nobody"}, "unknown speaker 'nobody'"),
        ({"language": "klingon"}, "klingon"),
        ({"max_frames": 10**6}, "max_frames is 1000000"),
    ],
)
def test_refusals_of_the_server_are_raised_by_the_iteration(
    connect: Pair, wishes: dict[str, Any], complaint: str
) -> None:
    _, remote = connect()
    stream = remote.speak(**{"text": TEXT} | wishes)
    with pytest.raises(InvalidRequestError, match=complaint):
        next(stream)
    assert stream.finish_reason == "error"
    assert isinstance(stream.error, InvalidRequestError)
    assert len(remote.speak(TEXT).read_all()) == 30 * 1920


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        ({"text": 5}, "expected str"),
        ({"text": "a\0b", "clean_text": False}, "NUL"),
        ({"text": "\ud800", "clean_text": False}, "surrogate"),
        ({"voice": 5}, "voice is 5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"layout": "sideways"}, "layout is 'sideways'"),
        ({"max_frames": 0}, "max_frames is 0"),
        ({"max_ahead_s": float("nan")}, "max_ahead_s is nan"),
        ({"sampling": {"temperature": 1}}, "expected SamplingParams"),
    ],
)
def test_impossible_requests_are_refused_at_once(connect: Pair, wishes: dict[str, Any], complaint: str) -> None:
    _, remote = connect()
    with pytest.raises(InvalidRequestError, match=complaint):
        remote.speak(**{"text": TEXT} | wishes)


def test_text_is_refused_as_near(connect: Pair) -> None:
    _, remote = connect()
    stream = remote.speak(TEXT)
    with pytest.raises(InvalidRequestError, match="has all its text"):
        stream.feed("More.")
    stream = remote.speak(None, clean_text=False)
    with pytest.raises(InvalidRequestError, match="NUL"):
        stream.feed("a\0b")
    stream.feed("Hello there.")
    stream.finish()
    assert stream.read_all().size
    with pytest.raises(InvalidRequestError, match="has all its text"):
        stream.feed("More.")


def test_a_full_server_is_a_capacity_error(connect: Pair) -> None:
    _, remote = connect(endless(), max_streams=1, max_waiting=0, **ENDLESS)
    with remote.speak(TEXT) as occupant:
        next(occupant)
        with pytest.raises(CapacityError, match="try again") as refused:
            next(remote.speak(TEXT))
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s > 0


def test_faults_come_after_the_chunks_that_were_made(connect: Pair) -> None:
    failed: list[int] = []

    def fail(call: int) -> None:
        if call == 5 or failed:  # another instance does no better
            failed.append(call)
            raise RuntimeError("on fire")

    _, remote = connect(fakes_with(on_decode=fail))
    stream = remote.speak(TEXT)
    with pytest.raises(BackendFaultError, match="on fire"):
        stream.read_all()
    assert stream.facts().frames == 5


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "", "http://host:80:", "http://host:0", "http://[::1"]
)
def test_impossible_urls_are_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="expected something like 'http://localhost:8000'"):
        RemoteEngine(url)


def test_impossible_timeouts_are_refused() -> None:
    with pytest.raises(SettingsError, match="connect_timeout_s is 0"):
        RemoteEngine("http://localhost:1", connect_timeout_s=0)


# ---- the network


def test_a_refused_connection_names_the_url() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens
        port = bound.getsockname()[1]
        with RemoteEngine(f"http://127.0.0.1:{port}") as remote:
            for _ in range(2):
                complaint = f"ws://127.0.0.1:{port}/v1/speak.*is the server running"
                with pytest.raises(ConnectionFailedError, match=complaint):
                    next(remote.speak(TEXT))


def test_another_kind_of_server_is_recognised(connect: Pair) -> None:
    served, _ = connect()
    with (
        RemoteEngine(served.url + "/elsewhere") as remote,
        pytest.raises(ConnectionFailedError, match="/elsewhere/v1/speak: it answered 40"),
    ):
        next(remote.speak(TEXT))


def test_the_key_is_sent_and_its_lack_is_told(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, server={"api_key": "secret"}) as served:
        with RemoteEngine(served.url, api_key="secret") as remote:
            assert len(remote.speak(TEXT).read_all()) == 30 * 1920
        with (
            RemoteEngine(served.url) as remote,
            pytest.raises(ConnectionFailedError, match=r"401.*the API key is missing"),
        ):
            next(remote.speak(TEXT))


def test_a_server_that_stops_says_so(connect: Pair) -> None:
    served, remote = connect(endless(), **ENDLESS)
    stream = remote.speak(TEXT)
    next(stream)
    served.server.should_exit = True
    with pytest.raises(EngineClosedError):
        list(stream)


def test_a_dropped_connection_ends_its_streams_and_the_next_one_reconnects(connect: Pair) -> None:
    opened: list[str] = []

    def hang_up(connection: ServerConnection) -> None:
        opened.append(str(connection.recv(HANG_S)))
        opened.append(str(connection.recv(HANG_S)))
        connection.socket.shutdown(socket.SHUT_RDWR)

    with rogue_server(hang_up) as url, RemoteEngine(url) as remote:
        for round_ in (1, 2):
            streams = [remote.speak(TEXT), remote.speak(None)]
            for stream in streams:
                with pytest.raises(ConnectionFailedError, match=f"the connection to ws{url[4:]}/v1/speak broke"):
                    list(stream)
            assert len(opened) == 2 * round_


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(connection: ServerConnection) -> None:
        with suppress(Exception):
            while True:
                connection.recv(HANG_S)

    def without_pings(*arguments: Any, **options: Any) -> Any:
        return connect_socket(*arguments, **options | {"ping_interval": None})  # whose answer may come late, too

    monkeypatch.setattr("megatalker.serving.client.connection.connect", without_pings)
    with rogue_server(ignore) as url, RemoteEngine(url, answer_timeout_s=0.3) as remote:
        for text in (TEXT, None):
            with pytest.raises(ConnectionFailedError, match=r"has not answered for 0\.3 s"):
                next(remote.speak(text))


@pytest.mark.slow
def test_a_server_that_is_dead_is_noticed_even_while_nothing_is_awaited_of_it() -> None:
    over = threading.Event()

    def freeze(connection: ServerConnection) -> None:
        name = json.loads(connection.recv(HANG_S))["id"]
        opened = {"sample_rate": 24_000, "format": "f32le", "backend": "b", "codec": "c", "seed": 1}
        connection.send(json.dumps({"type": "opened", "id": name, **opened}))
        with connection.protocol_mutex:  # nothing is read any more, not even what keeps connections alive
            over.wait(HANG_S)

    with rogue_server(freeze) as url, RemoteEngine(url, answer_timeout_s=3.0) as remote:
        stream = remote.speak(None)
        with pytest.raises(ConnectionFailedError, match="keepalive ping timeout"):
            next(stream)
        assert stream.backend == "b"
        over.set()


@pytest.mark.slow
def test_a_server_that_falls_silent_is_given_up_but_not_while_it_waits_for_text(connect: Pair) -> None:
    stuck, more = threading.Event(), threading.Event()

    def wait(call: int) -> None:
        if call == 5:
            stuck.set()
            more.wait(HANG_S)

    served, _ = connect(fakes_with(on_decode=wait))
    with RemoteEngine(served.url, answer_timeout_s=1.5) as remote:
        patient = remote.speak(None)
        time.sleep(3.0)
        assert patient.finish_reason is None
        patient.feed(TEXT)
        patient.finish()
        assert stuck.wait(HANG_S)
        with pytest.raises(ConnectionFailedError, match="has not answered"):
            list(patient)
    more.set()


@pytest.mark.parametrize("message", ["nonsense", '{"type": "opened"}', b"\7\7\7", b""])
def test_a_server_that_speaks_another_language_is_recognised(message: str | bytes) -> None:
    def babble(connection: ServerConnection) -> None:
        connection.recv(HANG_S)
        with suppress(Exception):
            connection.send(message)
            connection.recv(HANG_S)

    with (
        rogue_server(babble) as url,
        RemoteEngine(url) as remote,
        pytest.raises(ConnectionFailedError, match="its messages cannot be read"),
    ):
        list(remote.speak(TEXT))


# ---- close


def test_closing_ends_streams_and_refuses_more(connect: Pair) -> None:
    fakes = endless()
    served, remote = connect(fakes, **ENDLESS)
    stream = remote.speak(TEXT)
    next(stream)
    remote.close()
    with pytest.raises(EngineClosedError, match="the client of ws://"):
        list(stream)
    stream.finish()
    stream.cancel()
    with pytest.raises(EngineClosedError):
        remote.speak(TEXT)
    remote.close()
    eventually(lambda: served.rows_free(fakes), "its row is free")


def test_closing_does_not_wait_for_a_connection_in_progress() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = RemoteEngine(f"http://127.0.0.1:{silent.getsockname()[1]}", connect_timeout_s=HANG_S)
        stream = remote.speak(TEXT)
        connection, _ = silent.accept()
        began = time.monotonic()
        remote.close()
        connection.close()
        assert time.monotonic() - began < HANG_S / 2, "it did not wait for the connection's own timeout"
        with pytest.raises(EngineClosedError):
            next(stream)


def test_a_defect_of_the_client_ends_its_streams(connect: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    all_asked = threading.Event()

    def crash(*_: object, **__: object) -> None:
        assert all_asked.wait(HANG_S)
        raise ZeroDivisionError("a defect")

    served, _ = connect()
    monkeypatch.setattr("megatalker.serving.client.connection.connect", crash)
    with RemoteEngine(served.url) as remote:
        streams = [remote.speak(TEXT) for _ in range(3)]
        all_asked.set()
        for stream in streams:
            with pytest.raises(ConnectionFailedError, match="a defect"):
                next(stream)
        with pytest.raises(ConnectionFailedError, match="a defect"):
            remote.speak(TEXT)
