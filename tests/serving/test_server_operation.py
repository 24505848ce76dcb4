"""Probes, log, spans and metrics for operators of a server; and its start."""

import gc
import json
import logging
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fake_backend import Behaviour, Fakes, FakeTalker
from http_client import SPEECH, post
from megatalker.checkpoint import Checkpoint
from megatalker.engine.interpreter import SWITCH_S
from megatalker.engine.speech.chunks import Progress
from megatalker.errors import BackendNotFoundError, SettingsError
from megatalker.serving.client import RemoteEngine
from megatalker.serving.server import logs, telemetry
from megatalker.serving.server.address import bind
from megatalker.serving.server.callers import RequestContext, enter_request, leave_request
from megatalker.serving.server.lazy_engine import LazyEngine
from megatalker.serving.server.process import TalkServer
from megatalker.settings import ServerSettings, Settings
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with, in_process
from waiting import HANG_S, eventually

# ---- probes and start


def status(served: Served, path: str) -> int:
    return httpx.get(served.url + path).status_code


def test_a_server_is_live_while_it_warms_up_and_ready_afterwards(
    serve: Server, monkeypatch: pytest.MonkeyPatch, events: Any
) -> None:
    warm = threading.Event()
    monkeypatch.setattr(FakeTalker, "warmup", lambda self: warm.wait(HANG_S))
    served = serve(ready=False)
    eventually(lambda: served.server.started, "the server answers")
    assert (status(served, "/live"), status(served, "/ready"), status(served, "/health")) == (200, 503, 503)
    assert not events("request"), "probes are asked too often to be written down"
    warm.set()
    eventually(lambda: status(served, "/ready") == 200, "the server is ready")
    assert (status(served, "/live"), status(served, "/health")) == (200, 200)


@pytest.fixture
def late(tiny_custom_voice: Checkpoint) -> Iterator[Any]:
    """Starts servers whose engine is opened after they listen."""
    running: list[tuple[TalkServer, threading.Thread]] = []

    def start(fakes: Fakes, settings: Settings) -> TalkServer:
        engine = LazyEngine(settings, tiny_custom_voice, in_process(fakes.registry))
        server = TalkServer(engine, settings.server, bind(settings.server))
        thread = threading.Thread(target=server.run)
        running.append((server, thread))
        thread.start()
        return server

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(HANG_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.slow
def test_backends_are_loaded_at_the_start_or_by_the_first_request(
    late: Any, lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = Fakes()
    frozen: list[bool] = []
    intervals: list[float] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(bool(fakes.loaded)))
    monkeypatch.setattr(sys, "setswitchinterval", intervals.append)
    server = late(fakes, Settings(server=ServerSettings(port=0, lazy=lazy)))
    eventually(lambda: server.started and server.service.ready, "the server is ready")
    assert bool(fakes.loaded) is not lazy
    assert bool(frozen) is not lazy, "what is loaded needs no garbage collection"
    assert intervals == ([] if lazy else [SWITCH_S]), "the engine's thread gets Python's lock soon"
    assert httpx.get(server.url + "/metrics").status_code == 200
    assert httpx.get(server.url + "/health").json()["backend"] == ("auto" if lazy else "fake")
    answers: list[int] = []

    def ask() -> None:
        answers.append(httpx.post(server.url + SPEECH, json={"input": "Hi."}, timeout=HANG_S).status_code)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 3, "they waited for the load, which happened once"
    assert httpx.get(server.url + "/health").json()["backend"] == "fake"


@pytest.mark.parametrize("lazy", [False, True])
def test_a_load_that_fails_ends_the_server(late: Any, lazy: bool) -> None:
    server = late(Fakes(), Settings(backend="turbo", server=ServerSettings(port=0, lazy=lazy)))
    if lazy:
        eventually(lambda: server.started, "the server answers")
        response = httpx.post(server.url + SPEECH, json={"input": "Hi."}, timeout=HANG_S)
        assert "'turbo' is not installed" in response.json()["error"]["message"]
    eventually(lambda: server.failure is not None, "the server has failed")
    assert isinstance(server.failure, BackendNotFoundError)


# ---- TLS


def test_it_serves_https(serve: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *subject], check=True, capture_output=True)
    served = serve(server={"tls_certificate": certificate, "tls_key": key})
    assert served.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(verify=context) as client:
        assert client.get(served.url + "/ready").status_code == 200
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with RemoteEngine(served.url) as remote:
        np.testing.assert_array_equal(
            remote.speak("Hi.", seed=1).read_all(), served.engine.speak("Hi.", seed=1).read_all()
        )


def test_tls_files_that_cannot_be_used_are_named(serve: Server, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    with pytest.raises(SettingsError, match=r"broken\.pem.* cannot be used.*PEM files"):
        serve(server={"tls_certificate": broken, "tls_key": broken})
    with pytest.raises(SettingsError, match="go together"):
        serve(server={"tls_certificate": broken})


# ---- the log


Events = list[dict[str, Any]]


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Any:
    """Entries of the server's log, by the name of the event."""
    caplog.set_level(logging.INFO, telemetry.access.name)

    def named(event: str) -> Events:
        return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == event]

    return named


def test_requests_are_named_and_written_down(serve: Server, events: Any) -> None:
    served = serve()
    own = httpx.get(served.url + "/v1/models", params={"token": "secret"}, headers={"x-request-id": "abc-1"})
    assert own.headers["x-request-id"] == "abc-1"
    missing = httpx.get(served.url + "/v2/models", headers={"x-request-id": "two words" * 99})
    made = missing.headers["x-request-id"]
    assert len(made) == 32
    status(served, "/health")
    eventually(lambda: len(events("request")) == 2, "both are written down, the probe is not")
    first, second = events("request")
    assert {name: first[name] for name in ("method", "path", "status", "key", "client")} == {
        "method": "GET",
        "path": "/v1/models",
        "status": 200,
        "key": "anonymous",
        "client": "127.0.0.1",
    }
    assert "secret" not in str(first)
    assert 0 < first["duration_s"] < HANG_S
    assert (second["path"], second["status"]) == ("/v2/models", 404)


@pytest.mark.parametrize("route", ["http", "websocket"])
def test_every_utterance_is_written_down_with_its_facts(serve: Server, events: Any, route: str) -> None:
    served = serve()
    if route == "http":
        name = post(served, voice="ryan", seed=3).headers["x-request-id"]
    else:
        talk = served.talk()
        name = talk.socket.response.headers["x-request-id"]
        talk.say("open", voice="ryan", seed=3)
        for word in (TEXT[:20], TEXT[20:]):
            talk.say("text", text=word)
        talk.say("finish")
        talk.hear_all()
    eventually(lambda: events("utterance"), "it is written down")
    (facts,) = events("utterance")
    expected = {
        "request_id": name,
        "route": route,
        "key": "anonymous",
        "voice": "ryan",
        "text_chars": len(TEXT),
        "frames": 30,
        "underruns": facts["underruns"],
        "backend": "fake",
        "codec": "noise",
        "switches": 0,
        "finish_reason": "eos",
        "unsaid_chars": 0,
    }
    assert {key: facts[key] for key in expected} == expected
    assert 0 <= facts["queue_wait_s"] <= facts["ttfc_s"]
    assert facts["rtf"] > 0


def test_a_connection_is_written_down_when_it_ends(serve: Server, events: Any) -> None:
    served = serve()
    served.talk().socket.close()
    eventually(lambda: events("connection"), "it is written down")
    assert {key: events("connection")[0][key] for key in ("path", "status")} == {"path": "/v1/speak", "status": 101}


def test_a_bug_is_answered_counted_and_written_down_under_its_name(
    serve: Server, events: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()

    def fail(self: object, *arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("megatalker.serving.server.speech_service.SpeechService._voice", fail)
    response = post(served)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "InternalError")
    eventually(lambda: events("request"), "it is written down")
    assert len(response.headers["x-request-id"]) == 32
    assert events("request")[0]["status"] == 500
    assert 'error="ZeroDivisionError",route="http"} 1.0' in httpx.get(served.url + "/metrics").text


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("megatalker.x", logging.INFO, __file__, 1, message, (), None)
    made.__dict__["fields"] = fields
    return made


def test_the_log_is_text_or_json() -> None:
    entered = enter_request(RequestContext(id="abc"))
    try:
        event = record("request", path="/v1/ä\nx", duration_s=0.12345678, key="anna")
        text, line = logs.TextFormatter().format(event), logs.JsonFormatter().format(event)
    finally:
        leave_request(entered)
    assert text.endswith(r'INFO megatalker.x: request path="/v1/\u00e4\nx" duration_s=0.123457 key=anna request_id=abc')
    assert "\n" not in line
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "INFO",
        "logger": "megatalker.x",
        "message": "request",
        "path": "/v1/ä\nx",
        "duration_s": 0.12345678,
        "key": "anna",
        "request_id": "abc",
    }
    assert "request_id" not in json.loads(logs.JsonFormatter().format(record("outside")))


# ---- spans


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Finished spans by name."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    def named(name: str) -> list[ReadableSpan]:
        return [span for span in exporter.get_finished_spans() if span.name == name]

    return named


def test_an_utterance_is_a_span_within_its_request_within_the_caller_s(serve: Server, spans: Any) -> None:
    served = serve()
    headers = {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}
    httpx.post(served.url + SPEECH, json={"input": TEXT, "max_frames": 9}, headers=headers)
    eventually(lambda: spans(f"POST {SPEECH}") and spans("speak"), "both spans are over")
    (request,), (utterance,) = spans(f"POST {SPEECH}"), spans("speak")
    assert request.context.trace_id == 0x0123456789ABCDEF0123456789ABCDEF
    assert request.parent.span_id == 0x0123456789ABCDEF
    assert utterance.parent.span_id == request.context.span_id
    assert request.attributes["http.response.status_code"] == 200
    assert utterance.attributes["megatalker.frames"] == 9
    assert utterance.attributes["megatalker.finish_reason"] == "max_frames"
    prefilled, first = utterance.events
    assert (prefilled.name, first.name) == ("prefilled", "first chunk")
    assert utterance.start_time <= prefilled.timestamp <= first.timestamp <= utterance.end_time


def test_errors_are_recorded_in_the_span(serve: Server, spans: Any) -> None:
    def fail(call: int) -> None:
        raise RuntimeError("on fire")

    served = serve(fakes_with(on_decode=fail))
    post(served, voice="nobody")
    post(served)
    eventually(lambda: len(spans(f"POST {SPEECH}") + spans("speak")) == 4, "all spans are over")
    refused, failed = spans("speak")
    assert "InvalidRequestError" in refused.status.description
    assert "on fire" in failed.status.description
    assert [span.status.is_ok for span in spans(f"POST {SPEECH}")] == [True, False]


def test_a_websocket_is_a_span_and_a_probe_is_none(serve: Server, spans: Any) -> None:
    served = serve()
    assert httpx.get(served.url + "/ready").status_code == 200
    with served.talk() as talk:
        talk.say("open", text="Hi.")
        assert talk.hear_all().last["type"] == "done"
    eventually(lambda: spans("WS /v1/speak") and spans("speak"), "both spans are over")
    (connection,), (utterance,) = spans("WS /v1/speak"), spans("speak")
    assert utterance.parent.span_id == connection.context.span_id
    assert not spans("GET /ready")


# ---- metrics


def test_every_refusal_is_counted_by_reason(serve: Server) -> None:
    own = {"max_message_bytes": 4_000, "strict": True}  # otherwise any model is spoken with
    served = serve(endless(), **ENDLESS, max_streams=1, max_waiting=0, server=own)
    url = served.url
    with served.engine.speak(TEXT) as occupant:
        next(occupant)
        assert post(served).status_code == 429
    post(served, voice="nobody")
    post(served, model="gpt-9")
    httpx.post(url + SPEECH, content=b"{", headers={"content-type": "application/json"})
    httpx.post(url + SPEECH, content=b"x" * 5_000)
    httpx.post(url + SPEECH, content=iter([b"x" * 2_500] * 2))
    httpx.get(url + "/v3")
    httpx.get(url + SPEECH)
    talk = served.talk()
    talk.say("sing")
    talk.hear_event()
    talk.say("open", text="")
    talk.hear_event()
    plain = served.talk("/api/v1/speak")
    for message in ({"kind": "start", "speaker": "nobody"}, {"kind": "start"}):
        plain.say(message.pop("kind"), **message)
        assert plain.hear_event()["type"] in ("error", "ready")
    plain.say("sing")
    plain.hear_event()
    text = httpx.get(url + "/metrics").text
    counted = {
        line.partition("{")[2].partition("}")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("megatalker_refusals_total")
    }
    assert counted == {
        'error="CapacityError",route="http"': 1,
        'error="InvalidRequestError",route="http"': 2,
        'error="UnknownModelError",route="http"': 1,
        'error="TooLongError",route="http"': 2,
        'error="NoRouteError",route="http"': 2,
        'error="InvalidRequestError",route="websocket"': 3,
        'error="UnknownVoiceError",route="websocket"': 1,
    }


def test_waits_and_gaps_are_histograms(serve: Server) -> None:
    served = serve(Fakes(talkers={"fake": Behaviour()}), max_chunk_frames=1)
    post(served, max_frames=5)
    text = httpx.get(served.url + "/metrics").text
    for name, count in (("queue_wait", 1), ("ttfc", 1), ("chunk_gap", 4)):
        assert f'megatalker_{name}_seconds_count{{route="http"}} {count}.0' in text


def test_a_gap_is_the_engine_s_not_the_caller_s() -> None:
    progress = Progress(seed=1, requested_at=0.0, backend="fake", codec="noise")
    progress.note_chunk(1.0, 1, 1920)
    progress.note_chunk(1.5, 2, 3840)
    progress.playback.excuse()
    progress.note_chunk(9.0, 2, 3840)
    progress.note_chunk(9.25, 4, 7680)
    assert progress.chunk_gaps_s == [0.5, 0.25]
    assert (progress.frames, progress.chunks) == (9, 4)
