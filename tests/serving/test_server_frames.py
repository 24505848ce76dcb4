"""WebSockets below their messages: handshakes that cannot be read, and frames that say nothing."""

from contextlib import suppress

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed

from megatalker.serving.server.connections import LINGER_S, PAUSE_S
from raw_socket import PART, PING, PONG, TEXT_FRAME, flood, frame, plug, read_all
from serving import Server, Talk
from waiting import HANG_S, eventually

KEY = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
VERSION = "sec-websocket-version: 13\r\n"
UPGRADE = "host: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
LINE = "GET /v1/speak HTTP/1.1\r\n"
BAD_HANDSHAKES = {
    "body": (f"POST /v1/speak HTTP/1.1\r\n{UPGRADE}{KEY}{VERSION}content-length: 5\r\n\r\n12345", 400),
    "chunks": (f"POST /v1/speak HTTP/1.1\r\n{UPGRADE}{KEY}{VERSION}transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "method": (f"POST /v1/speak HTTP/1.1\r\n{UPGRADE}{KEY}{VERSION}\r\n", 405),
    "many headers": (LINE + UPGRADE + KEY + VERSION + "a: b\r\n" * 130 + "\r\n", 431),
    "long header": (f"{LINE}{UPGRADE}{KEY}{VERSION}a: {'b' * 9_000}\r\n\r\n", 431),
    "long address": (f"GET /v1/speak?{'a' * 9_000} HTTP/1.1\r\n{UPGRADE}{KEY}{VERSION}\r\n", 414),
    "no key": (f"{LINE}{UPGRADE}{VERSION}\r\n", 400),
    "bad key": (f"{LINE}{UPGRADE}sec-websocket-key: !\r\n{VERSION}\r\n", 400),
    "no version": (f"{LINE}{UPGRADE}{KEY}\r\n", 400),
    "other version": (f"{LINE}{UPGRADE}{KEY}sec-websocket-version: 8\r\n\r\n", 400),
    "bytes in a name": (f"{LINE}{UPGRADE}{KEY}{VERSION}a\xe9: b\r\n\r\n", 400),
    "an answer under way": (f"GET /live HTTP/1.1\r\n\r\n{LINE}{UPGRADE}{KEY}{VERSION}\r\n", 400),
}


@pytest.mark.parametrize("what", BAD_HANDSHAKES)
def test_a_handshake_that_cannot_be_read_is_answered_and_forgotten(serve: Server, what: str) -> None:
    served = serve()
    sent, status = BAD_HANDSHAKES[what]
    received = read_all(plug(served, sent.encode("latin-1")))
    if what == "an answer under way":
        assert b"101 Switching" not in received
    else:
        assert int(received.split()[1]) == status, received
    eventually(lambda: not served.server.server_state.connections, "it counts no more")


def test_the_server_stops_though_a_handshake_was_refused(serve: Server) -> None:
    served = serve()
    for sent, _ in BAD_HANDSHAKES.values():
        plug(served, sent.encode("latin-1"))
    served.stop()


FLOODS = {
    "pings": frame(PING, b"x" * 125) * 3_000,
    "pongs": frame(PONG) * 3_000,
    "fragments": frame(TEXT_FRAME, last=False) + frame(PART, last=False) * 3_000,
    "fragments of a letter": frame(TEXT_FRAME, b"{", last=False) + frame(PART, b" ", last=False) * 3_000,
    "messages without sense": frame(TEXT_FRAME, b"{}") * 3_000,
    "binary messages": frame(0x2, b"x") * 3_000,
    "empty messages": frame(TEXT_FRAME) * 3_000,
    "unknown utterances": frame(TEXT_FRAME, b'{"type":"text","id":"nobody","text":"."}') * 3_000,
}


def closed(talk: Talk) -> tuple[int, str]:
    """The code and reason that the server hung up with."""
    with pytest.raises(ConnectionClosed) as ended:
        exhaust(talk)
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code, ended.value.rcvd.reason


def exhaust(talk: Talk) -> None:
    while True:
        talk.socket.recv(HANG_S)


@pytest.mark.parametrize("path", ["/v1/speak", "/api/v1/speak"])
@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_is_hung_up_on_with_a_reason(serve: Server, what: str, path: str) -> None:
    served = serve()
    talk = served.talk(path)
    flood(talk, FLOODS[what])
    code, reason = closed(talk)
    assert (code, "a second" in reason) == (1008, True), reason
    eventually(lambda: not served.server.server_state.connections, "it is closed")
    eventually(lambda: not served.server.server_state.tasks, "its conversation is over")


def test_requests_that_came_at_a_bad_time_end_no_speech(serve: Server) -> None:
    talk = serve(server={"max_streams_per_connection": 1}).talk()
    talk.say("open", id="first")
    assert talk.hear_event()["type"] == "opened"
    for number in range(asked := 300):
        talk.say("open", id=str(number), text="Hello.")
    for number in range(asked):
        answer = talk.hear_event()
        assert (answer["id"], answer["error"]["type"]) == (str(number), "CapacityError")
    talk.say("text", id="first", text="Hello.")
    talk.say("finish", id="first")
    assert talk.hear_all("first").last["type"] == "done"


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_with_unread_answers_ends(serve: Server, what: str) -> None:
    served = serve(server={"send_timeout_s": 0.5})
    handshake = f"{LINE}{UPGRADE}{KEY}{VERSION}\r\n".encode()
    connection = plug(served, handshake, receives=1 << 10)
    assert connection.recv(1 << 10).startswith(b"HTTP/1.1 101")
    connection.sendall(FLOODS[what])
    eventually(lambda: not served.server.server_state.connections, "it is dropped")
    eventually(lambda: not served.server.server_state.tasks, "its conversation is over")


def test_what_is_poured_after_the_end_is_read_slowly(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parts = WebSocketsSansIOProtocol.data_received, list[int]()

    def count_and_parse(connection: WebSocketsSansIOProtocol, data: bytes) -> None:
        if connection.close_sent:
            parts.append(len(data))
        parse(connection, data)

    monkeypatch.setattr(WebSocketsSansIOProtocol, "data_received", count_and_parse)
    served = serve()
    for _ in range(20):  # until one is closed while the server still sends: only then it stays open for a while
        connection = plug(served, f"{LINE}{UPGRADE}{KEY}{VERSION}\r\n".encode(), receives=1 << 10)
        connection.settimeout(HANG_S)
        with suppress(ConnectionError):
            while True:
                connection.sendall(FLOODS["unknown utterances"])
        if parts:
            break
    assert 1 <= len(parts) <= 2 * LINGER_S / PAUSE_S, "a part at each interval until it is closed"
    eventually(lambda: not served.server.server_state.tasks, "its conversation is over")


def test_pings_now_and_then_and_messages_in_parts_are_welcome(serve: Server) -> None:
    talk = serve().talk()
    message = b'{"type":"open","text":"Hello.","id":""}'
    talk.socket.socket.sendall(frame(PING) * 20 + frame(TEXT_FRAME, last=False))
    for letter in message:
        talk.socket.socket.sendall(frame(PART, bytes([letter]), last=False))
    talk.socket.socket.sendall(frame(PART))
    assert talk.hear_all().last["type"] == "done"


def test_many_messages_that_came_at_once_are_obeyed_in_order(serve: Server) -> None:
    """More than one part of what is parsed at a time."""
    talk = serve().talk()
    talk.say("open")
    pieces = b"".join(frame(TEXT_FRAME, b'{"type":"text","id":"","text":"%d "}' % number) for number in range(500))
    talk.socket.socket.sendall(pieces + frame(TEXT_FRAME, b'{"type":"finish","id":""}'))
    assert talk.hear_all().last["type"] == "done"
