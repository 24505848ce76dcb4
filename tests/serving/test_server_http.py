"""The HTTP routes as curl or OpenAI's client meet them: a real server, the engine on fake backends."""

import json
import socket
import threading
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

from fake_backend import Fakes
from http_client import SPEECH, pcm16, post
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.serving.server.address import bind
from megatalker.serving.server.app import create_app
from megatalker.settings import ServerSettings
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with, serving
from waiting import HANG_S, eventually

# ---- speech


def test_instructions_are_openai_s_word_for_instruct(tiny_1b7: Checkpoint) -> None:
    with serving(tiny_1b7) as served:
        expected = pcm16(served, instruct="Whisper.", seed=1)
        assert not np.array_equal(expected, pcm16(served, seed=1))
        for name in ("instructions", "instruct"):
            response = post(served, seed=1, response_format="pcm", **{name: "Whisper."})
            np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), expected)


# ---- clients that go away


def test_a_client_that_goes_away_while_it_waits_for_a_row_waits_no_more(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS, max_streams=1)
    body = json.dumps({"input": TEXT})
    head = f"POST {SPEECH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n{body}"
    with served.engine.speak(TEXT) as occupant:
        next(occupant)
        with socket.create_connection(("127.0.0.1", httpx.URL(served.url).port or 0), HANG_S) as client:
            client.sendall(request.encode())
            eventually(lambda: served.engine.metrics().waiting == 1, "it waits")
        eventually(lambda: served.engine.metrics().waiting == 0, "nothing waits")
        assert served.engine.metrics().active == 1
    assert fakes.loaded["fake"].issued == 1


@pytest.mark.slow
def test_a_client_that_reads_nothing_for_too_long_is_dropped(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS, max_untaken_s=1.0, server={"send_timeout_s": 0.2})
    asked = {"input": TEXT, "response_format": "pcm"}  # which fills the kernel's buffers soonest
    with httpx.stream("POST", served.url + SPEECH, json=asked, timeout=HANG_S):
        eventually(lambda: fakes.loaded["fake"].issued == 1 and served.rows_free(fakes), "its row is free")


# ---- errors


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        ({"input": 5}, 400, "input is 5"),
        ({"inptu": "Hi."}, 400, "unknown key 'inptu'"),
        ({"speed": 0.24}, 400, "speed is 0.24"),
        ({"speed": 4.1}, 400, "speed is 4.1"),
        ({"speed": "fast"}, 400, "speed is 'fast'"),
        ({"voice": {"id": "nobody"}}, 400, "unknown speaker 'nobody'"),
        ({"voice_file": "é"}, 400, "not base64"),
        ({"max_ahead_s": 1e308}, 400, "max_ahead_s is 1e+308"),
        ({"response_format": "m4a"}, 400, "'mp3', 'opus', 'aac', 'flac', 'wav', 'pcm', 'pcm_mulaw' or 'pcm_alaw'"),
        ({"instructions": "a", "instruct": "b"}, 400, "give one of them"),
        ({"sampling": {"temperature": 0}}, 400, "temperature is 0"),
        ({"sampling": {"heat": 1}}, 400, "sampling has no 'heat'"),
    ],
)
def test_errors_name_their_type_and_what_is_wrong(
    shared: Served, body: dict[str, Any], status: int, complaint: str
) -> None:
    response = post(shared, **body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (status, "InvalidRequestError")
    assert complaint in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "complaint"),
    [
        ("POST", SPEECH, b"nonsense", 400, "this is not JSON"),
        ("POST", SPEECH, b'{"input": "Hi.", "voice": "\\ud800"}', 400, "unknown speaker '\ufffd'"),
        ("POST", SPEECH, b"[1]", 400, "it should be an object"),
        ("POST", SPEECH, b'{"input": "Hi.", "sampling": {"\\ud800": 1}}', 400, "sampling has no '\ufffd'"),
        ("GET", SPEECH, b"", 405, "Method Not Allowed"),
        ("GET", "/v2/voices", b"", 404, "GET /v2/voices"),
        ("POST", SPEECH, b"x" * 5_000, 413, "max_message_bytes"),
        ("POST", SPEECH, iter([b"x" * 2_500] * 2), 413, "max_message_bytes"),
    ],
)
def test_bytes_that_are_no_request_get_the_same_kind_of_answer(
    serve: Server, method: str, path: str, content: Any, status: int, complaint: str
) -> None:
    served = serve(server={"max_message_bytes": 4_000})
    headers = {"content-type": "application/json"}
    response = httpx.request(method, served.url + path, content=content, headers=headers, timeout=HANG_S)
    assert response.status_code == status
    assert response.headers.get("allow") == ("POST" if status == 405 else None)
    assert complaint in response.json()["error"]["message"]


def test_an_error_before_the_first_chunk_is_a_status(serve: Server) -> None:
    def fail(call: int) -> None:
        raise RuntimeError("on fire")

    response = post(serve(fakes_with(on_decode=fail)))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "BackendFaultError"


def test_an_error_later_breaks_audio_off(serve: Server, caplog: pytest.LogCaptureFixture) -> None:
    def fail(call: int) -> None:
        if call == 5:
            raise RuntimeError("on fire")

    with pytest.raises(httpx.RemoteProtocolError):
        post(serve(fakes_with(on_decode=fail)))
    assert "a response breaks off: BackendFaultError" in caplog.text
    assert "Exception in ASGI application" not in caplog.text


def test_any_asgi_server_can_host_it_and_a_closed_engine_is_an_unavailable_service(
    tiny_custom_voice: Checkpoint,
) -> None:
    with Engine.open(checkpoint=tiny_custom_voice, registry=Fakes().registry) as engine:
        app = create_app(engine)
        with bind(ServerSettings(port=0)) as bound:
            server = uvicorn.Server(uvicorn.Config(app, log_config=None))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
            thread.start()
            url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            try:
                eventually(lambda: server.started and app.state.service.ready, "the server is ready")
                assert httpx.post(url + SPEECH, json={"input": TEXT}).status_code == 200
                engine.close()
                response = httpx.post(url + SPEECH, json={"input": TEXT})
                assert (response.status_code, response.json()["error"]["type"]) == (503, "EngineClosedError")
                health = httpx.get(url + "/health")
                assert (health.status_code, health.json()["status"]) == (503, "failed")
                live = httpx.get(url + "/live")
                assert (live.status_code, live.json()["error"]["type"]) == (503, "EngineClosedError")
            finally:
                server.should_exit = True
                thread.join(HANG_S)
