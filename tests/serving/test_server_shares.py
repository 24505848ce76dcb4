"""Capacity is divided among owners: no key, and no address, keeps the others out."""

import hashlib
import socket
import threading
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from http_client import SPEECH
from megatalker.errors import SettingsError
from megatalker.serving.server.callers import TokenBucket, address_owner
from megatalker.settings import Settings
from raw_socket import answer, plug
from serving import ENDLESS, Served, Server, Talk, endless, fakes_with
from waiting import HANG_S, eventually

ELSEWHERE = "127.0.0.2"


def keys(*names: str) -> dict[str, Any]:
    return {name: {"hash": f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"} for name in names}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def talk_as(served: Served, key: str) -> Talk:
    return served.talk(additional_headers=bearer(key))


def talk_from(served: Served, address: str) -> Talk:
    own = socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1])), HANG_S, (address, 0))
    return served.talk(sock=own)


def heard(talk: Talk) -> str:
    """How an utterance ends."""
    talk.say("open", text="Hello.", id="heard")
    return str(talk.hear_all("heard").last["type"])


def closed(talk: Talk) -> int:
    with pytest.raises(ConnectionClosed) as ended:
        talk.socket.recv(HANG_S)
    return 0 if ended.value.rcvd is None else ended.value.rcvd.code


# ---- connections


def test_idle_sockets_of_one_key_make_room_for_another(serve: Server) -> None:
    served = serve(server={"max_connections": 4, "keys": keys("anna", "bert")})
    idle = [talk_as(served, "anna") for _ in range(4)]
    assert heard(talk_as(served, "bert")) == "done"
    assert closed(idle[0]) == 1013, "the oldest"
    assert [heard(talk) for talk in idle[1:]] == ["done"] * 3
    assert httpx.get(served.url + "/v1/models", headers=bearer("bert")).status_code == 200


def test_busy_sockets_of_one_key_make_room_for_another_up_to_its_share(serve: Server) -> None:
    served = serve(server={"max_connections": 4, "keys": keys("anna", "bert")})
    busy = [talk_as(served, "anna") for _ in range(4)]
    for talk in busy:
        talk.say("open")
        talk.hear_until("opened")
    few = [talk_as(served, "bert") for _ in range(2)]
    for talk in few:
        talk.say("open")
        talk.hear_until("opened")
    assert [closed(talk) for talk in busy[:1:-1]] == [1013] * 2, "the newest"
    with pytest.raises(InvalidStatus) as refused:
        talk_as(served, "bert")
    assert refused.value.response.status_code == 503
    for talk in (*busy[:2], *few):
        talk.say("finish")
        assert talk.hear_all().last["type"] == "done"


def test_a_key_alone_may_have_all_connections_and_one_more_is_refused(serve: Server) -> None:
    served = serve(server={"max_connections": 3, "keys": keys("anna")})
    talks = [talk_as(served, "anna") for _ in range(3)]
    with pytest.raises(InvalidStatus) as refused:
        talk_as(served, "anna")
    assert refused.value.response.status_code == 503
    assert [heard(talk) for talk in talks] == ["done"] * 3


def test_requests_without_a_key_do_not_displace_those_of_a_key(serve: Server) -> None:
    """Connections without a key may see the page, and do not hinder the owner of a key."""
    served = serve(server={"max_connections": 3, "keys": keys("anna")})
    talks = [talk_as(served, "anna") for _ in range(3)]
    for talk in talks:
        talk.say("open")
        talk.hear_until("opened")
    strangers = [plug(served) for _ in range(5)]
    assert [answer(stranger)[0] for stranger in strangers[:4]] == [503] * 4, "they make room for each other"
    for talk in talks:
        talk.say("finish")
        assert talk.hear_all().last["type"] == "done"


def test_connections_without_a_request_make_room_by_address(serve: Server) -> None:
    served = serve(server={"max_connections": 4})
    first = plug(served, source="127.0.0.1")
    many = [plug(served, source=ELSEWHERE) for _ in range(3)]
    plug(served, source=ELSEWHERE)
    assert answer(many[0])[0] == 503, "of the address that has most, not the oldest of all"
    first.sendall(b"GET /live HTTP/1.1\r\n\r\n")
    assert b" 200 " in first.recv(1 << 10)


def test_sockets_of_one_address_make_room_for_another(serve: Server) -> None:
    served = serve(server={"max_connections": 4})
    idle = [talk_from(served, ELSEWHERE) for _ in range(4)]
    assert heard(served.talk()) == "done"
    assert closed(idle[0]) == 1013


# ---- utterances


def test_empty_utterances_of_one_key_do_not_keep_others_out(serve: Server) -> None:
    served = serve(max_open=16, server={"keys": keys("anna", "bert")})
    talks = [talk_as(served, "anna") for _ in range(4)]
    for talk in talks:
        for number in range(4):
            talk.say("open", id=str(number))
            talk.hear_until("opened", utterance=str(number))
    assert heard(talk_as(served, "bert")) == "done"
    headers = bearer("bert")
    assert httpx.post(served.url + SPEECH, json={"input": "Hello."}, headers=headers).status_code == 200
    gone = talks[0].hear_until("error", utterance="0").last
    assert "another owner" in gone["error"]["message"]
    refused = httpx.post(served.url + SPEECH, json={"input": "Hello."}, headers=bearer("anna"))
    assert refused.status_code == 200, "a place is free, since others have ended"


def test_long_requests_of_one_address_keep_no_other_out(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, max_streams=2, max_waiting=2)
    long = talk_from(served, ELSEWHERE)
    for number in range(4):
        long.say("open", id=str(number), text="Hello.")
    eventually(lambda: served.engine.metrics().active + served.engine.metrics().waiting == 4, "all are there")
    with httpx.stream("POST", served.url + SPEECH, json={"input": "Hi.", "response_format": "pcm"}) as response:
        assert response.status_code == 200
        assert next(response.iter_raw())


def test_uploads_of_one_caller_are_bounded(serve: Server, tmp_path: Any) -> None:
    served = serve(server={"voices_dir": tmp_path})
    head = "POST /v1/voices HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=x\r\n"
    pending = [plug(served, f"{head}content-length: 100\r\n\r\n--x", source=ELSEWHERE) for _ in range(4)]
    eventually(lambda: len(served.server.server_state.tasks) == 4, "all are being read")
    status, message = answer(plug(served, f"{head}connection: close\r\ncontent-length: 0\r\n\r\n", source=ELSEWHERE))
    assert (status, "4 uploads" in message) == (429, True)
    assert answer(plug(served, f"{head}connection: close\r\ncontent-length: 0\r\n\r\n"))[0] == 400, "another may"
    for one in pending:
        one.close()
    eventually(lambda: not served.server.server_state.tasks, "they are over")
    again = plug(served, f"{head}connection: close\r\ncontent-length: 0\r\n\r\n", source=ELSEWHERE)
    assert answer(again)[0] == 400


# ---- whose a connection is


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("10.1.2.3", "client 10.1.2.3"),
        ("::ffff:10.1.2.3", "client 10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "client 2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "client 2001:db8:1:2::/64"),
        ("fe80::1%eth0", "client fe80::/64"),
        ("unknown", "client unknown"),
        ("", "client "),
    ],
)
def test_an_address_stands_for_those_that_a_client_may_choose(address: str, owner: str) -> None:
    assert address_owner(address) == owner


FORGED = {"X-Forwarded-For": "10.9.9.9, 10.1.1.1"}


@pytest.mark.parametrize(
    ("allowed", "client"),
    [((), "127.0.0.1"), (("10.0.0.0/8",), "127.0.0.1"), (("127.0.0.1",), "10.1.1.1"), (("127.0.0.0/8",), "10.1.1.1")],
)
def test_a_forwarded_address_is_believed_from_proxies_that_are_named(
    serve: Server, allowed: tuple[str, ...], client: str
) -> None:
    """The last address that no named proxy has: what stands before it may be forged."""
    go, seen = threading.Event(), []
    fakes = fakes_with(on_decode=lambda call: go.wait(HANG_S))
    served = serve(fakes, server={"trusted_proxies": allowed})
    speak_for = served.engine.speak_for

    def watched(owner: str, *arguments: Any, **options: Any) -> Any:
        seen.append(owner)
        return speak_for(owner, *arguments, **options)

    served.engine.speak_for = watched  # type: ignore[method-assign]
    go.set()
    assert httpx.post(served.url + SPEECH, json={"input": "Hello."}, headers=FORGED).status_code == 200
    assert seen == [f"client {client}"]


@pytest.mark.parametrize("wrong", ["proxy.local", "10.0.0.0/40", "", "10.0.0.1/8"])
def test_a_proxy_is_an_address_or_a_network(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.trusted_proxies.*expected an address such as"):
        Settings.read(server={"trusted_proxies": [wrong]})


# ---- rates


def test_tokens_come_back_up_to_the_burst() -> None:
    now = 0.0
    bucket = TokenBucket(2.0, 3, lambda: now)
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now = 0.5
    assert [bucket.take() for _ in range(2)] == [0.0, 0.5]
    now = 100.0
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert [bucket.reserve() for _ in range(3)] == [0.5, 1.0, 1.5], "each has a token of its own to wait for"
    now = 101.0
    assert (bucket.take(), bucket.reserve()) == (1.0, 1.0), "those that were reserved are gone"
