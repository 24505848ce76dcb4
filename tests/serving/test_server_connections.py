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
from megatalker.serving.server.conversation import Conversation
from megatalker.serving.server.running import bind
from megatalker.settings import ServerSettings
from serving import TEXT, Served, Server, fakes_with
from waiting import HANG_S, eventually

HEAD = f"POST {SPEECH} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"


def plug(served: Served, sent: str = "") -> socket.socket:
    """A connection on which this was sent."""
    connection = served.sockets.enter_context(
        socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1])), HANG_S)
    )
    connection.sendall(sent.encode())
    return connection


def answer(connection: socket.socket) -> tuple[int, str]:
    """Status and error message, once the server has hung up."""
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


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
            assert answer(plug(served))[0] == 408, "so long has passed"
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
    assert answer(plug(served))[0] == 408, "so long has passed"
    timers_gone.set()
    while received.count(end) < 2 and (part := connection.recv(1 << 16)):
        received += part
    assert received.count(end) == 2, "both came to their end"


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


def test_where_all_connections_are_busy_a_newcomer_is_told_to_try_again(serve: Server) -> None:
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
    """Neither serves yet: what decides is who asked first."""
    with bind(ServerSettings(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port}: Address already in use; choose another"):
            bind(ServerSettings(port=port))


# ---- a flood of messages


class Flood:
    """A WebSocket on which so many messages have come that nobody has to wait for one."""

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
    flood = Flood(500)

    async def turns() -> int:
        reading = asyncio.create_task(Conversation(flood, served.server.speaker, ServerSettings()).run())
        count = 0
        while not reading.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) >= 500
