"""A server on a loopback address without keys: no web page reaches it under a name of its own (DNS rebinding)."""

import http.client
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from http_client import SPEECH
from megatalker.serving.server.address import guard_loopback
from megatalker.serving.server.keyring import hash_key
from megatalker.settings import ServerSettings
from serving import Server

EVIL = (
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "[::2]:80",
    "2130706433",
)


def asks(url: str, host: str) -> int:
    headers = {"host": host, "origin": f"http://{host}"}
    return httpx.post(url + SPEECH, headers=headers, json={"input": "Hi."}).status_code


def test_a_page_that_rebinds_its_name_is_refused_and_local_names_are_answered(serve: Server) -> None:
    served = serve()
    port = served.url.rsplit(":", 1)[1]
    for host in EVIL:
        assert asks(served.url, host) == 403, host
        for path in ("/", "/ready", "/metrics", "/docs"):
            assert httpx.get(served.url + path, headers={"host": host}).status_code == 403, path
        with pytest.raises(InvalidStatus) as refused:
            served.talk(additional_headers={"Host": host, "Origin": f"http://{host}"})
        assert refused.value.response.status_code == 403
    for host in ("localhost", f"localhost:{port}", "LOCALHOST", "127.0.0.1", f"[::1]:{port}", "[::1]", "localhost."):
        assert asks(served.url, host) == 200, host


def test_names_that_the_settings_list_are_answered_and_no_others(serve: Server) -> None:
    served = serve(server={"allowed_hosts": ["speech.lan", "[::1]"]})
    hosts = ("speech.lan", "[::1]:80", "localhost", "evil.example")
    assert [asks(served.url, host) for host in hosts] == [200, 200, 403, 403]


def test_a_server_with_a_key_answers_for_every_name(serve: Server) -> None:
    served = serve(server={"keys": {"anna": {"hash": hash_key("mt-a")}}})
    headers = {"host": "speech.example.com", "authorization": "Bearer mt-a"}
    assert httpx.get(served.url + "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("own", "address", "guarded"),
    [
        ({}, "127.0.0.1", True),
        ({"host": "127.0.0.7"}, "127.0.0.7", True),
        ({"host": "::1"}, "::1", True),
        ({"host": "localhost"}, "127.0.0.1", True),
        ({"host": "0.0.0.0"}, "0.0.0.0", False),
        ({"host": "::"}, "::", False),
        ({"host": "192.0.2.1"}, "192.0.2.1", False),
        ({"api_key": "secret"}, "127.0.0.1", False),
        ({"allowed_hosts": ["a.example"]}, "127.0.0.1", False),
    ],
)
def test_which_servers_are_guarded(own: dict[str, Any], address: str, guarded: bool) -> None:
    settings = ServerSettings(**own)
    hosts = guard_loopback(settings, address).allowed_hosts
    assert (hosts != settings.allowed_hosts) == guarded
    assert not guarded or {settings.host, address, "localhost", "127.0.0.1", "::1"} <= set(hosts)


@pytest.mark.parametrize("header", ["Bearer ", "Bearer", "bearer  \t", "", "Basic Og==", "Bearer mt-a mt-a"])
def test_a_bearer_of_nothing_never_passes(serve: Server, header: str) -> None:
    served = serve(server={"keys": {"anna": {"hash": hash_key("mt-a")}}, "api_key": "plain"})
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"))
    connection.request("GET", "/v1/models", headers={"authorization": header})
    assert connection.getresponse().status == 401
    connection.close()
