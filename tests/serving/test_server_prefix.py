"""Addresses: a reverse proxy with a prefix, voice pickers' paths, and the methods that every route has."""

import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from fake_backend import Fakes
from http_client import post
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.serving.server.app import create_app
from megatalker.settings import ServerSettings
from serving import TEXT, Served, Server, serving
from waiting import HANG_S

PUBLIC = "https://speech.example.com"


def proxy(upstream: str, prefix: str, *, cuts: bool, **told: str) -> TestClient:
    """A reverse proxy that offers a server under a prefix, which it cuts off or leaves."""

    async def forward(request: Request) -> Response:
        path = request.url.path.removeprefix(prefix) if cuts else request.url.path
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "accept-encoding")}
        async with httpx.AsyncClient(timeout=HANG_S) as client:
            answer = await client.request(
                request.method, upstream + path, content=await request.body(), headers=headers | told
            )
        kept = {name: value for name, value in answer.headers.items() if name in ("content-type", "location", "allow")}
        return Response(answer.content, answer.status_code, kept)

    routes = [Route(prefix + "{path:path}", forward, methods=["GET", "HEAD", "POST", "OPTIONS", "DELETE"])]
    return TestClient(Starlette(routes=routes), base_url=PUBLIC)


def linked(page: str) -> list[str]:
    return re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"'#]+)""", page)


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("configured", [True, False])
def test_everything_works_behind_a_prefix(serve: Server, cuts: bool, configured: bool) -> None:
    """Known by the setting, or told by a proxy that is trusted."""
    own: dict[str, Any] = {"trusted_proxies": ["127.0.0.1"], "allowed_hosts": ["speech.example.com"]} | (
        {"root_path": "/speech/"} if configured else {}
    )
    served = serve(server=own)
    told = {"x-forwarded-host": "speech.example.com"} | ({} if configured else {"x-forwarded-prefix": "/speech"})
    outside = proxy(served.url, "/speech", cuts=cuts, **told)
    for page in ("/speech/", "/speech/docs"):
        shown = outside.get(page)
        assert shown.status_code == 200
        for link in linked(shown.text):
            found = outside.get(str(httpx.URL(PUBLIC + page).join(link)))
            assert found.status_code == 200, (page, link)
    assert outside.get("/speech/openapi.json").json()["servers"] == [{"url": "/speech"}]
    mine = {"origin": PUBLIC}
    assert outside.post("/speech/v1/audio/speech", json={"input": TEXT}, headers=mine).status_code == 200
    foreign = outside.post("/speech/v1/audio/speech", json={"input": TEXT}, headers={"origin": "https://evil.org"})
    assert foreign.status_code == 403
    assert outside.head("/speech/static/page.js").status_code == 200
    assert outside.options("/speech/v1/voices").headers["allow"] == "GET, HEAD, OPTIONS, POST"
    if not cuts:
        bare = outside.get("/speech", follow_redirects=False)
        assert str(httpx.URL(PUBLIC + "/speech").join(bare.headers["location"])) == PUBLIC + "/speech/"
    path = "/v1/speak" if cuts else "/speech/v1/speak"
    talk = served.talk(path, additional_headers=mine | told)
    talk.say("open", text="Hi.")
    assert talk.hear_all().last["type"] == "done"


def test_address_headers_of_untrusted_clients_are_ignored(serve: Server) -> None:
    served = serve(server={"trusted_proxies": ["10.0.0.0/8"], "allowed_hosts": ["127.0.0.1"]})
    told = {"x-forwarded-host": "speech.example.com", "x-forwarded-prefix": "/speech", "origin": PUBLIC}
    assert httpx.get(served.url + "/", headers=told).status_code == 403
    del told["origin"]
    assert "servers" not in httpx.get(served.url + "/openapi.json", headers=told).json()


@pytest.mark.parametrize("prefix", ["//evil.org", "/a\\b", "/a b", "speech", "/" + "x" * 100, "/a/" * 50])
def test_a_trusted_proxy_cannot_tell_just_any_prefix(serve: Server, prefix: str) -> None:
    served = serve(server={"trusted_proxies": ["*"]})
    answer = httpx.get(served.url + "/openapi.json", headers={"x-forwarded-prefix": prefix})
    assert answer.status_code == 200
    assert "servers" not in answer.json()


@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("root_path", "speech", "expected a path such as /speech"),
        ("root_path", "//x", "expected a path"),
        ("trusted_proxies", ["proxy.example.com"], "expected an address such as 10.0.0.7"),
        ("trusted_proxies", ["10.0.0.1/8"], "a network such as"),
    ],
)
def test_settings_of_proxies_are_checked(setting: str, value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ServerSettings(**{setting: value})


def test_the_application_can_be_mounted_in_another(tiny_custom_voice: Checkpoint) -> None:
    with Engine.open(checkpoint=tiny_custom_voice, registry=Fakes().registry) as engine:
        inner = create_app(engine, ServerSettings(lazy=True))
        client = TestClient(Starlette(routes=[Mount("/inner", inner)]), base_url=PUBLIC)
        assert client.get("/inner/").status_code == 200
        assert client.get("/inner/docs").status_code == 200
        assert client.get("/inner/static/page.js").status_code == 200
        assert client.get("/inner/v1/audio/voices").status_code == 200
        with client.websocket_connect("/inner/v1/speak", headers={"origin": "https://evil.org"}) as socket:
            with pytest.raises(WebSocketDisconnect) as closed:
                socket.receive_json()
            assert (closed.value.code, "allowed_origins" in closed.value.reason) == (1008, True)


# ---- where other servers' clients look


def test_voice_pickers_find_voices_and_models(shared: Served) -> None:
    voices = httpx.get(shared.url + "/v1/audio/voices").json()["voices"]
    assert {"id": "ryan", "name": "ryan", "kind": "speaker"} in voices
    assert {voice["id"]: voice["name"] for voice in voices}, "as Open WebUI reads them"
    (model,) = httpx.get(shared.url + "/v1/audio/models").json()["models"]
    assert (model["id"], model["name"]) == ("tiny_custom_voice", "tiny_custom_voice")
    for voice in voices:
        assert post(shared, voice=voice["id"], model=model["id"]).status_code == 200
    ours = httpx.get(shared.url + "/v1/voices").json()
    assert ours == httpx.get(shared.url + "/v1/audio/voices").json()
    removed = httpx.delete(shared.url + "/v1/audio/voices/Ryan")
    assert removed.status_code == 404
    assert "'Ryan' is a speaker of the checkpoint and cannot be removed" in removed.json()["error"]["message"]
    unknown = httpx.delete(shared.url + "/v1/voices/nobody").json()["error"]["message"]
    assert unknown == "this server keeps no voice 'nobody'; voices that it keeps: none"


def test_a_base_server_without_voices_says_how_it_gets_one(tiny_base: Checkpoint) -> None:
    with serving(tiny_base) as served:
        for body, status, complaint in (
            ({}, 400, "has no voice of its own, and none is named; this server keeps no voice; POST /v1/voices or"),
            ({"voice": "alloy"}, 400, "has no voice of its own"),
            ({"voice": "nobody"}, 404, "unknown voice 'nobody'; this server keeps no voice; POST /v1/voices or"),
        ):
            answer = post(served, **body)
            assert (answer.status_code, complaint in answer.json()["error"]["message"]) == (status, True), answer.text
        talk = served.talk()
        talk.say("open", text="Hi.", voice="nobody")
        assert "this server keeps no voice" in talk.hear_event()["error"]["message"]


GETTABLE = (
    *("/", "/docs", "/docs/assets/swagger-ui.css", "/static/page.js", "/openapi.json", "/health", "/live", "/ready"),
    *("/metrics", "/v1/models", "/v1/models/tiny_custom_voice", "/v1/voices", "/v1/audio/voices", "/v1/audio/models"),
)


def test_every_route_with_get_has_head_and_options(shared: Served) -> None:
    for path in GETTABLE:
        got, head = httpx.get(shared.url + path), httpx.head(shared.url + path)
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == got.headers["content-type"]
        assert int(head.headers["content-length"]) > 0
    for path, methods in (("/v1/voices", "GET, HEAD, OPTIONS, POST"), ("/v1/audio/speech", "OPTIONS, POST")):
        answer = httpx.options(shared.url + path)
        assert (answer.status_code, answer.headers["allow"]) == (204, methods)
    assert httpx.delete(shared.url + "/static/page.js").headers["allow"] == "GET, HEAD"
    refused = httpx.put(shared.url + "/v1/audio/voices")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert httpx.head(shared.url + "/v1/audio/speech").status_code == 405
    assert httpx.head(shared.url + "/nowhere").status_code == 404


def test_speech_is_neither_kept_nor_held_back_by_proxies(shared: Served) -> None:
    answers = [post(shared, **body) for body in ({}, {"stream": False}, {"stream_format": "sse"})]
    answers.append(httpx.post(shared.url + "/tts/stream", json={"text": "Hi."}, timeout=HANG_S))
    for answer in answers:
        assert answer.status_code == 200
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
