"""Keys, their limits, tokens of browsers, and the allow-lists of a server."""

import hashlib
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Subprotocol

from http_client import SPEECH, post
from megatalker.engine import Engine, SpeechStream
from megatalker.errors import SettingsError
from megatalker.serving.server.callers import Caller, RateLimitError, StreamLimitError
from megatalker.serving.server.keyring import Keyring, hash_key
from megatalker.serving.server.problems import AuthenticationError
from megatalker.serving.server.usage import KeyUsage
from megatalker.settings import ServerSettings
from serving import ENDLESS, TEXT, Served, Server, endless
from waiting import eventually

KEY, OTHER = "mt-anna", "mt-bert"


def settings(**own: Any) -> dict[str, Any]:
    """Return settings of a server for Anna, who has these limits, and Bert, who has none."""
    anna, bert = (f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" for key in (KEY, OTHER))
    return {"keys": {"anna": {"hash": anna, **own}, "bert": {"hash": bert}}}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def token(served: Served, key: str = KEY) -> dict[str, Any]:
    return httpx.post(served.url + "/v1/tokens", headers=bearer(key)).raise_for_status().json()


def refusals(served: Served, error: str, route: str) -> float:
    lines = httpx.get(served.url + "/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(f'megatalker_refusals_total{{error="{error}",route="{route}"}}')]
    return float(found[0].rsplit(" ", 1)[1]) if found else 0


def status(served: Served, key: str) -> int:
    return httpx.get(served.url + "/v1/models", headers=bearer(key)).status_code


def write(file: Path, content: str) -> None:
    """Replace the file atomically: no reader finds half of it, or nothing."""
    beside = file.with_suffix(".new")
    beside.write_text(content)
    beside.replace(file)


# ---- keys


def test_every_key_of_the_settings_opens_the_server_and_no_other(serve: Server) -> None:
    served = serve(server=settings() | {"api_key": "plain"})
    for key in (KEY, OTHER, "plain"):
        assert httpx.get(served.url + "/v1/models", headers=bearer(key)).status_code == 200
    for headers in ({}, bearer("mt-eve"), bearer(settings()["keys"]["anna"]["hash"]), {"Authorization": KEY}):
        assert httpx.get(served.url + "/v1/models", headers=headers).status_code == 401
    for path in ("/live", "/ready", "/health", "/metrics", "/openapi.json", "/docs"):
        assert httpx.get(served.url + path).status_code == 200, path
    assert refusals(served, "AuthenticationError", "http") == 4


def test_nothing_of_a_request_is_read_before_its_key(serve: Server) -> None:
    served = serve(server=settings())
    for content in (b"nonsense", b"x" * (2 << 20)):
        response = httpx.post(served.url + SPEECH, content=content)
        assert response.status_code == 401, "not a word about the body"
    assert httpx.get(served.url + "/v1/secret-plans").status_code == 401, "nor about existing routes"


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"keys": settings()["keys"] | {"carl": settings()["keys"]["anna"]}}, "have the same hash"),
        ({"keys": {"api_key": settings()["keys"]["anna"]}, "api_key": "plain"}, "a key cannot be named 'api_key'"),
    ],
)
def test_keys_that_cannot_be_told_apart_are_refused(broken: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Keyring(ServerSettings(**broken))


# ---- limits


def test_requests_a_minute_are_saved_up_for_a_minute_and_no_longer() -> None:
    now = 0.0
    caller = Caller("anna", KeyUsage(clock=lambda: now), requests_per_minute=3)
    for _ in range(3):
        caller.count_request()
    now = 10.0
    with pytest.raises(RateLimitError, match="3 times a minute") as refused:
        caller.count_request()
    assert refused.value.retry_after_s == pytest.approx(10)
    now = 20.0
    caller.count_request()
    now = 1e6
    for _ in range(3):
        caller.count_request()
    with pytest.raises(RateLimitError):
        caller.count_request()


def test_keys_that_change_in_the_settings_file_change_in_the_server(
    serve: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"
    served = serve(server=settings(), settings_file=file)
    before = served.talk(additional_headers=bearer(KEY))
    write(file, f'[server.keys.carl]\nhash = "{hash_key("mt-carl")}"\n')
    eventually(lambda: status(served, KEY) == 401, "Anna's key is gone")
    assert status(served, "mt-carl") == 200
    before.say("open", text=TEXT)
    assert "key 'anna' was removed" in before.hear_until("error").last["error"]["message"]
    write(file, "[server.keys.carl]\nhash = 'short'\n")
    eventually(lambda: "the keys stay as they were" in caplog.text, "it was read")
    file.unlink()
    eventually(lambda: "does not exist" in caplog.text, "it was missed")
    assert status(served, "mt-carl") == 200


def test_keys_that_changed_before_the_server_started_are_those_of_the_file(serve: Server, tmp_path: Path) -> None:
    """A server may take long to start after it read its settings."""
    file = tmp_path / "keys.toml"
    write(file, f'[server.keys.carl]\nhash = "{hash_key("mt-carl")}"\n')
    served = serve(server=settings(), settings_file=file)
    eventually(lambda: status(served, "mt-carl") == 200, "it looked")
    assert status(served, KEY) == 401


def test_new_keys_close_a_server_and_no_keys_open_none() -> None:
    keyring = Keyring(ServerSettings())
    assert asks(keyring, None) == "anonymous"
    keyring.replace(ServerSettings(**settings(requests_per_minute=2)).keys)
    with pytest.raises(AuthenticationError):
        asks(keyring, None)
    keyring.replace({})
    for key in (None, KEY):
        with pytest.raises(AuthenticationError):
            asks(keyring, key)


def test_a_key_keeps_its_counts_under_new_limits() -> None:
    keyring = Keyring(ServerSettings(**settings()))
    anna = keyring.caller(connection(KEY))
    anna.take_stream()
    keyring.replace(ServerSettings(**settings(max_streams=1, requests_per_minute=2, manage_voices=True)).keys)
    assert keyring.caller(connection(KEY)) is anna
    with pytest.raises(StreamLimitError):
        anna.take_stream()
    anna.count_request()
    anna.count_request()
    with pytest.raises(RateLimitError):
        anna.count_request()
    assert anna.manage_voices
    with pytest.raises(SettingsError, match="have the same hash"):
        keyring.replace(ServerSettings(keys={name: settings()["keys"]["bert"] for name in ("bert", "carl")}).keys)
    assert (keyring.caller(connection(KEY)), anna.removed) == (anna, False), "nothing has changed"


def connection(key: str | None) -> HTTPConnection:
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    return HTTPConnection({"type": "http", "headers": headers})


def asks(keyring: Keyring, key: str | None) -> str:
    return keyring.caller(connection(key)).name


def test_a_key_that_asks_too_often_is_told_when_to_ask_again_and_others_are_served(serve: Server) -> None:
    served = serve(server=settings(requests_per_minute=2))
    body = {"input": "Hi."}
    answers = [httpx.post(served.url + SPEECH, headers=bearer(KEY), json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
    assert answers[-1].json()["error"]["type"] == "CapacityError"
    assert httpx.post(served.url + SPEECH, headers=bearer(OTHER), json=body).status_code == 200
    assert httpx.get(served.url + "/v1/models", headers=bearer(KEY)).status_code == 200, "listing models is not counted"
    assert refusals(served, "RateLimitError", "http") == 1


def test_utterances_at_a_time_are_counted_over_all_connections_of_a_key(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, server=settings(max_streams=2))
    first, second, other = (served.talk(additional_headers=bearer(key)) for key in (KEY, KEY, OTHER))
    for talk in (first, second, other):
        talk.say("open", text=TEXT)
        assert talk.hear_event()["type"] == "opened"
    second.say("open", id="third")
    refused = second.hear_until("error", utterance="third").last["error"]
    assert (refused["type"], "may have 2 utterances at a time" in refused["message"]) == ("CapacityError", True)
    body = {"input": TEXT}
    assert httpx.post(served.url + SPEECH, headers=bearer(KEY), json=body).headers["retry-after"] == "1"
    assert refusals(served, "StreamLimitError", "websocket") == 1
    assert refusals(served, "StreamLimitError", "http") == 1
    first.socket.close()
    eventually(lambda: len(served.server.service.running) == 2, "the first utterance has ended")
    second.say("open", id="fourth")
    assert second.hear_until("opened", "error", utterance="fourth").last["type"] == "opened"


def test_a_refused_request_gives_its_place_back(serve: Server) -> None:
    served = serve(server=settings(max_streams=1))
    for voice, status in (("nobody", 400), ("nobody", 400), ("ryan", 200), ("ryan", 200)):
        body = {"input": "Hi.", "voice": voice}
        assert httpx.post(served.url + SPEECH, headers=bearer(KEY), json=body).status_code == status


def test_one_connection_opens_so_many_utterances_and_no_more(serve: Server) -> None:
    """Utterances without text cost nothing to open, and would fill the queue of everybody."""
    served = serve(server={"max_streams_per_connection": 3})
    talk = served.talk()
    for number in range(72):
        talk.say("open", id=str(number))
    heard = [talk.hear_event() for _ in range(72)]
    assert sorted(event["type"] for event in heard) == ["error"] * 69 + ["opened"] * 3
    (error,) = {event["error"]["message"] for event in heard if event["type"] == "error"}
    assert "max_streams_per_connection" in error
    assert post(served).status_code == 200, "others find room"
    talk.say("cancel", id="0")
    talk.hear_until("done", utterance="0")
    talk.say("open", id="more", text="Hi.")
    assert talk.hear_until("done", "error", utterance="more").last["type"] == "done"


# ---- tokens


@pytest.mark.parametrize("way", ["query", "subprotocol"])
def test_a_token_opens_a_websocket_in_the_name_of_its_key(serve: Server, way: str) -> None:
    served = serve(endless(), **ENDLESS, server=settings(max_streams=1))
    got = token(served)
    assert got["expires_in"] == 60
    if way == "query":
        talk = served.talk(f"/v1/speak?token={got['token']}")
    else:
        talk = served.talk(subprotocols=[Subprotocol(name) for name in got["subprotocols"]])
        assert talk.socket.subprotocol == "megatalker", "browsers want one of theirs agreed to"
    talk.say("open", text=TEXT)
    assert talk.hear_event()["type"] == "opened"
    busy = httpx.post(served.url + SPEECH, headers=bearer(KEY), json={"input": "Hi."})
    assert (busy.status_code, "'anna'" in busy.json()["error"]["message"]) == (429, True)


def test_a_token_opens_nothing_else_and_expires(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(server=settings())
    good = token(served)["token"]
    for path in ("/v1/models", "/v1/tokens"):
        for attempt in ({"params": {"token": good}}, {"headers": bearer(good)}):
            assert httpx.request("POST", served.url + path, **attempt).status_code == 401
    foreign = Keyring(ServerSettings(**settings()))
    forged = foreign.token(Caller("anna"))
    for bad, complaint in ((forged, "no token of this server"), (good[:-1], "no token"), ("", "no token")):
        with pytest.raises(InvalidStatus) as refused:
            served.talk(f"/v1/speak?token={bad}")
        assert refused.value.response.status_code == 401
        assert complaint in refused.value.response.body.decode()
    monkeypatch.setattr("itsdangerous.timed.TimestampSigner.get_timestamp", lambda self: 4_000_000_000)
    with pytest.raises(InvalidStatus) as refused:
        served.talk(f"/v1/speak?token={good}")
    assert "older than 60 s" in refused.value.response.body.decode()


def test_servers_that_share_a_secret_take_each_other_s_tokens() -> None:
    one, other = (Keyring(ServerSettings(**settings(), token_secret="s" * 32)) for _ in range(2))
    assert other._token_bearer(one.token(Caller("anna"))).name == "anna"


# ---- hosts and pages


def test_only_listed_hosts_are_answered(serve: Server) -> None:
    served = serve(server={"allowed_hosts": ["127.0.0.1", "*.Example.com"]})
    assert httpx.get(served.url + "/v1/models").status_code == 200
    for host, status in (("speech.example.com:80", 200), ("example.com", 403), ("evil.org", 403)):
        assert httpx.get(served.url + "/v1/models", headers={"host": host}).status_code == status
    assert refusals(served, "HostError", "http") == 2


def test_a_foreign_web_page_may_not_ask_unless_it_is_listed(serve: Server) -> None:
    served = serve(server={"allowed_origins": ["https://app.example.com"]})
    mine, listed = (served.url, True), ("https://app.example.com", True)
    for origin, allowed in (mine, listed, ("https://evil.org", False), ("null", False)):
        headers = {"origin": origin}
        response = httpx.post(served.url + SPEECH, headers=headers, json={"input": "Hi."})
        assert response.status_code == (200 if allowed else 403), origin
        if allowed:
            served.talk(additional_headers=headers).socket.close()
        else:
            with pytest.raises(ConnectionClosedError) as refused:
                served.talk(additional_headers=headers).hear()
            assert refused.value.rcvd is not None
            assert refused.value.rcvd.code == 1008
            assert re.search(f"'{origin}' may not ask; .* allowed_origins", refused.value.rcvd.reason)
    assert refusals(served, "OriginError", "websocket") == 2


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("https://speech.example.com", "speech.example.com:443", True),
        ("http://speech.example.com:80", "speech.example.com", True),
        ("https://speech.example.com", "speech.example.com:80", False),
        ("https://" + "é" * 200, "speech.example.com", False),
    ],
)
def test_a_page_and_its_server_have_one_origin_whether_the_usual_port_is_named_or_not(
    serve: Server, origin: str, host: str, allowed: bool
) -> None:
    served = serve(server={"allowed_hosts": ["speech.example.com"]})
    answer = httpx.get(served.url + "/", headers={"origin": origin.encode(), "host": host})
    assert answer.status_code == (200 if allowed else 403)


def test_a_page_hears_why_its_token_opens_nothing(serve: Server) -> None:
    served = serve(server=settings())
    with pytest.raises(ConnectionClosedError, match="no token of this server") as refused:
        served.talk("/v1/speak?token=x", origin=served.url, subprotocols=[Subprotocol("megatalker")]).hear()
    assert refused.value.rcvd is not None
    assert refused.value.rcvd.code == 1008


def test_listed_pages_may_read_answers_across_origins(serve: Server) -> None:
    served = serve(server=settings() | {"allowed_origins": ["https://app.example.com"]})
    headers = {"origin": "https://app.example.com"}
    asks = headers | {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = httpx.options(served.url + SPEECH, headers=asks)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example.com"
    refused = httpx.get(served.url + "/v1/models", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example.com", "the page sees why"


# ---- turns


@pytest.mark.parametrize("keyed", [True, False])
def test_the_engine_gives_turns_to_keys_or_else_to_addresses(
    serve: Server, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(server=settings() if keyed else {})
    owners: list[str] = []
    speak_for = Engine.speak_for

    def noted(self: Engine, owner: str, *arguments: Any, **changes: Any) -> SpeechStream:
        owners.append(owner)
        return speak_for(self, owner, *arguments, **changes)

    monkeypatch.setattr(Engine, "speak_for", noted)
    for key in (KEY, OTHER):
        httpx.post(served.url + SPEECH, headers=bearer(key), json={"input": "Hi."})
        talk = served.talk(additional_headers=bearer(key))
        talk.say("open", text="Hi.")
        talk.hear_all()
    assert owners == (["key anna"] * 2 + ["key bert"] * 2 if keyed else ["client 127.0.0.1"] * 4)
