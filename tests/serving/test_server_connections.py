"""Connections that send nothing, too little, too much, or more of it than anybody can take."""

import asyncio
import json
import socket
import threading
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from http_client import SPEECH, post
from megatalker.errors import SettingsError
from megatalker.serving.server import connections
from megatalker.serving.server.address import bind
from megatalker.serving.server.socket_session import SocketSession
from megatalker.settings import ServerSettings
from raw_socket import answer, plug, read_all
from serving import TEXT, Server, fakes_with
from waiting import HANG_S, eventually

HEAD = f"POST {SPEECH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


# ---- requests that never come


@pytest.mark.parametrize("sent", ["", "POST ", HEAD, HEAD + 'content-length: 20\r\n\r\n{"input":'])
def test_a_request_that_does_not_come_whole_is_given_up(serve: Server, sent: str) -> None:
    served = serve(server={"request_timeout_s": 0.2})
    status, message = answer(plug(served, sent))
    assert status == 408
    assert "no whole request came within 0.2 s" in message
    assert "request_timeout_s" in message
    served.server.config.http_protocol_class.settings = ServerSettings()  # the next is given its time
    assert post(served).status_code == 200


def test_a_request_that_has_come_may_take_its_time(serve: Server) -> None:
    timers_gone = threading.Event()
    fakes = fakes_with(on_decode=lambda call: call == 0 or timers_gone.wait(HANG_S))
    served = serve(fakes, server={"request_timeout_s": 0.2})
    with httpx.stream("POST", served.url + SPEECH, json={"input": TEXT, "response_format": "pcm"}) as response:
        parts = response.iter_raw()
        size = len(next(parts))
        with served.talk() as talk:
            assert answer(plug(served))[0] == 408, "the timeout has passed"
            timers_gone.set()
            assert size + sum(map(len, parts)) == 30 * 1920 * 2
            talk.say("open", text="Hi.")
            assert talk.hear_all().last["type"] == "done"


def test_a_request_that_came_behind_another_may_take_its_time(serve: Server) -> None:
    timers_gone = threading.Event()
    served = serve(
        fakes_with(on_decode=lambda call: call < 40 or timers_gone.wait(HANG_S)), server={"request_timeout_s": 0.2}
    )
    body = json.dumps({"input": TEXT, "response_format": "pcm"})
    request = f"{HEAD}content-length: {len(body)}\r\n\r\n{body}"
    connection, received = plug(served, request + request), b""
    end = b"\r\n0\r\n\r\n"
    while received.count(b"HTTP/1.1 200") < 2 and (part := connection.recv(1 << 16)):
        received += part
    assert received.count(end) == 1, "the second speaks"
    assert answer(plug(served))[0] == 408, "the timeout has passed"
    timers_gone.set()
    while received.count(end) < 2 and (part := connection.recv(1 << 16)):
        received += part
    assert received.count(end) == 2, "both responses are complete"


def test_a_connection_whose_request_was_answered_early_is_not_kept_for_ever(serve: Server) -> None:
    """The rest of a refused request is no reason to wait for another one for ever."""
    served = serve(server={"api_key": "secret", "request_timeout_s": 0.2})
    connection = plug(served, f"{HEAD}content-length: 5\r\n\r\n")
    assert b" 401 " in connection.recv(1 << 16)
    connection.sendall(b"12345")
    read_all(connection)
    eventually(lambda: not served.server.server_state.connections, "it is closed")


# ---- requests without measure


LINE = "GET / HTTP/1.1\r\n"
CHUNKED = f"{HEAD}transfer-encoding: chunked\r\n\r\n"
WITHOUT_MEASURE = {
    "address": ("GET /" + "x" * 8_000, 414, "more than 8000 bytes"),
    "long address": ("GET /" + "x" * 100_000, 414, "more than 8000 bytes"),
    "headers": (LINE + "a: b\r\n" * 102, 431, "more than 100 headers"),
    "many headers": (LINE + "a: b\r\n" * 5_000, 431, "more than 100 headers"),
    "header": (f"{LINE}a: {'b' * 8_188}\r\n\r\n", 431, "a header of the request has more than 8190 bytes"),
    "unended header": (f"{LINE}a: {'b' * 100_000}", 431, "exceed 65536 bytes"),
    "unended name": (f"{LINE}{'b' * 100_000}", 431, "exceed 65536 bytes"),
    "all headers": (LINE + f"a: {'b' * 8_000}\r\n" * 12, 431, "exceed 65536 bytes"),
    "empty lines": ("\r\n" * 50_000, 431, "exceed 65536 bytes"),
    "chunk extension": (f"{CHUNKED}1;{'x' * 100_000}", 431, "chunks exceed"),
    "tiny chunks": (CHUNKED + "1\r\nx\r\n" * 20_000, 431, "chunks exceed"),
    "trailers": (f"{CHUNKED}0\r\n" + f"a: {'b' * 8_000}\r\n" * 12, 431, "exceed"),
    "many trailers": (f"{CHUNKED}0\r\n" + "a: b\r\n" * 102, 431, "more than 100 headers"),
    "nonsense": ("nonsense\r\n\r\n", 400, "invalid http request"),
}


@pytest.mark.parametrize("what", WITHOUT_MEASURE)
def test_a_request_is_bounded_in_every_part(serve: Server, what: str) -> None:
    sent, status, complaint = WITHOUT_MEASURE[what]
    connection = plug(serve())
    connection.sendall(sent.encode())
    found, message = answer(connection)
    assert (found, complaint in message) == (status, True), message


def test_a_request_just_within_the_bounds_is_answered(serve: Server) -> None:
    served = serve(server={"max_message_bytes": 1 << 20})
    headers = "".join(f"x-{number}: b\r\n" for number in range(96)) + f"x: {'b' * 8_187}\r\n"
    body = json.dumps({"input": TEXT})
    chunks = "".join(f"1\r\n{letter}\r\n" for letter in body)
    request = f"{HEAD}{headers}transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    assert plug(served, request).recv(1 << 10).startswith(b"HTTP/1.1 200")
    assert plug(served, f"GET /{'x' * 7_999} HTTP/1.1\r\n\r\n").recv(1 << 10).startswith(b"HTTP/1.1 404")
    large = post(served, input=TEXT, instruct="x" * 900_000)
    assert large.status_code == 400, "it is read to the end"


def test_requests_behind_one_that_is_under_way_are_bounded(serve: Server) -> None:
    go = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: go.wait(HANG_S)))
    body = json.dumps({"input": TEXT})
    connection = plug(served, f"{HEAD}content-length: {len(body)}\r\n\r\n{body}" + "GET /live HTTP/1.1\r\n\r\n" * 100)
    assert read_all(connection) == b"", "an error would be taken for the answer to the first"
    go.set()
    assert post(served).status_code == 200


# ---- answers that nobody reads

ASSET = "GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nhost: localhost\r\n"


def test_what_a_client_has_left_unheard_is_no_error(serve: Server, caplog: pytest.LogCaptureFixture) -> None:
    """An answer is under way, and too many requests wait behind it, when the connection ends: none fills the log."""
    served = serve()
    served.server._bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
    for _ in range(20):
        plug(served, "GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200, receives=1 << 10)
    eventually(lambda: not served.server.server_state.connections, "they are dropped")
    assert httpx.get(served.url + "/live", timeout=HANG_S).is_success
    assert not [record for record in caplog.records if record.exc_info is not None]


@pytest.mark.parametrize("sent", [(ASSET + "\r\n") * 12, ASSET + "connection: close\r\n\r\n"])
def test_a_client_that_does_not_read_its_answers_is_dropped(serve: Server, sent: str) -> None:
    served = serve(server={"send_timeout_s": 0.3, "max_connections": 2})
    served.server._bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    connection = plug(served, sent, receives=1 << 12)
    eventually(lambda: served.server.server_state.tasks, "it is being answered")
    eventually(lambda: not served.server.server_state.connections, "it is dropped")
    eventually(lambda: not served.server.server_state.tasks, "nobody goes on answering")
    assert len(read_all(connection)) < 1_000_000


def test_the_rest_of_an_unread_answer_is_dropped(serve: Server) -> None:
    """Less than what makes a transport tell that it is full."""
    served = serve(server={"send_timeout_s": 0.3})
    served.server._bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
    request = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    plug(served, request, receives=1 << 10)
    connections = served.server.server_state.connections
    eventually(lambda: any(one.transport.is_closing() for one in set(connections)), "it waits for the client")
    eventually(lambda: not connections, "it is dropped")


# ---- HTTP/1.0


@pytest.mark.parametrize("format_", ["pcm", "wav"])
def test_http_1_0_hears_no_chunk_headers(serve: Server, format_: str) -> None:
    served = serve()
    body = json.dumps({"input": TEXT, "response_format": format_, "seed": 1})
    head = HEAD.replace("1.1", "1.0")
    received = read_all(plug(served, f"{head}content-length: {len(body)}\r\n\r\n{body}"))
    headers, _, samples = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert samples == post(served, response_format=format_, seed=1).content


def test_http_1_0_hears_the_length_where_it_is_known(serve: Server) -> None:
    received = read_all(plug(serve(), "GET /v1/models HTTP/1.0\r\n\r\n"))
    headers, _, body = received.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in headers.lower()


# ---- too many connections


def test_idle_connections_make_room(serve: Server) -> None:
    served = serve(server={"max_connections": 4})
    idle = [plug(served, HEAD) for _ in range(4)]
    assert httpx.get(served.url + "/health").status_code == 200
    status, message = answer(idle[0])
    assert status == 503
    assert "max_connections" in message
    idle[3].setblocking(False)
    with pytest.raises(BlockingIOError):
        idle[3].recv(1)


def test_those_told_to_go_linger_in_bounds(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that connect again at once wait before they can, and cannot pile up."""
    monkeypatch.setattr(connections, "LINGER_S", 10 * HANG_S)
    served = serve(server={"max_connections": 3})
    idle = [plug(served, HEAD) for _ in range(5)]
    assert b" 503 " in idle[0].recv(1 << 12)
    assert b" 503 " in idle[1].recv(1 << 12)
    open_ones = served.server.server_state.connections
    assert len(open_ones) == 5, "the refused ones have not been closed"
    idle += [plug(served, HEAD) for _ in range(20)]
    assert b" 503 " in idle[21].recv(1 << 12)
    eventually(lambda: len(open_ones) <= connections.MOST_LINGERING * 3, "the oldest of them are closed")
    assert httpx.get(served.url + "/health").status_code == 200


def test_with_all_connections_busy_a_further_client_is_told_to_retry(serve: Server) -> None:
    served = serve(server={"max_connections": 2})
    talks = [served.talk() for _ in range(2)]
    for talk in talks:
        talk.say("open")
        talk.hear_until("opened")
    status, message = answer(plug(served))
    assert (status, "try again" in message) == (503, True)
    talks[0].socket.close()
    eventually(lambda: len(served.server.server_state.connections) == 1, "its place is free")
    assert httpx.get(served.url + "/health").status_code == 200


# ---- the key comes first


@pytest.mark.parametrize("path", [SPEECH, "/v1/models", "/nowhere"])
@pytest.mark.parametrize("content", [b"nonsense", b"x" * 5_000, b'{"input": 5}'])
def test_nothing_is_read_before_the_key(serve: Server, path: str, content: bytes) -> None:
    served = serve(server={"api_key": "secret", "max_message_bytes": 4_000})
    headers = {"content-type": "application/json"}
    response = httpx.post(served.url + path, content=content, headers=headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert "the API key is missing or wrong" in response.json()["error"]["message"]


def test_without_a_key_unknown_sockets_are_refused_like_known_ones(serve: Server) -> None:
    served = serve(server={"api_key": "secret"})
    for path in ("/v1/speak", "/nowhere"):
        with pytest.raises(InvalidStatus) as refused:
            served.talk(path=path)
        assert refused.value.response.status_code == 401


# ---- one port


def test_the_second_of_two_servers_started_together_is_refused() -> None:
    """Neither serves yet, so the server that asked first wins."""
    with bind(ServerSettings(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port}: Address already in use; choose another"):
            bind(ServerSettings(port=port))


# ---- a flood of messages


class Flood:
    """A WebSocket whose ``messages`` have all arrived: receiving never waits."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    async def receive(self) -> dict[str, Any]:
        if not self.left:
            return {"type": "websocket.disconnect", "code": 1000}
        self.left -= 1
        return {"type": "websocket.receive", "text": "{}"}

    async def send_text(self, text: str) -> None:
        pass


def test_others_get_their_turn_between_two_messages(serve: Server) -> None:
    served = serve()
    flood = Flood(150)

    async def turns() -> int:
        reading = asyncio.create_task(SocketSession(flood, served.server.service, ServerSettings()).run())
        count = 0
        while not reading.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) >= 150
