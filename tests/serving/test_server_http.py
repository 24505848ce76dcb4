"""The HTTP routes as curl or OpenAI's client meet them: a real server, the engine on fake backends."""

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import torch
import uvicorn
from websockets.exceptions import InvalidStatus

from fake_backend import Behaviour, Fakes, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.errors import InvalidRequestError, SettingsError
from megatalker.serving.audio import to_pcm16
from megatalker.serving.server.app import create_app
from megatalker.serving.server.running import bind
from megatalker.settings import ServerSettings
from megatalker.voices import Voice
from serving import ENDLESS, TEXT, Served, endless, fakes_with, serving
from waiting import HANG_S, eventually

Server = Callable[..., Served]
SPEECH = "/v1/audio/speech"


@pytest.fixture
def serve(tiny_custom_voice: Checkpoint) -> Iterator[Server]:
    with ExitStack() as stack:
        yield lambda *fakes, **settings: stack.enter_context(serving(tiny_custom_voice, *fakes, **settings))


def post(served: Served, **body: Any) -> httpx.Response:
    return httpx.post(served.url + SPEECH, json={"input": TEXT} | body, timeout=HANG_S)


def pcm16(served: Served, **wishes: Any) -> np.ndarray:
    return np.frombuffer(to_pcm16(served.engine.speak(TEXT, **wishes).read_all()), "<i2")


# ---- speech


@pytest.mark.parametrize("file_format", ["wav", "flac"])
def test_files_hold_exactly_what_the_engine_says(serve: Server, file_format: str) -> None:
    served = serve()
    response = post(served, seed=5, response_format=file_format)
    assert (response.status_code, response.headers["content-type"]) == (200, f"audio/{file_format}")
    samples, rate = soundfile.read(io.BytesIO(response.content), dtype="int16")
    assert rate == 24_000
    np.testing.assert_array_equal(samples, pcm16(served, seed=5))
    assert response.headers["x-megatalker-seed"] == "5"
    assert response.headers["x-megatalker-backend"] == "fake"


def test_pcm_is_samples_and_nothing_else(serve: Server) -> None:
    served = serve()
    response = post(served, seed=5, response_format="pcm")
    assert response.headers["content-type"] == "audio/pcm"
    np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), pcm16(served, seed=5))


def test_wishes_of_both_kinds_reach_the_engine(serve: Server) -> None:
    served = serve()
    wishes: dict[str, Any] = {"voice": "serena", "language": "english", "seed": 3, "max_frames": 9}
    response = post(served, model=served.engine.checkpoint.name, response_format="pcm", speed=1, **wishes)
    np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), pcm16(served, **wishes))


def test_instructions_are_openai_s_word_for_instruct(tiny_1b7: Checkpoint) -> None:
    with serving(tiny_1b7) as served:
        expected = pcm16(served, instruct="Whisper.", seed=1)
        assert not np.array_equal(expected, pcm16(served, seed=1))
        for name in ("instructions", "instruct"):
            response = post(served, seed=1, response_format="pcm", **{name: "Whisper."})
            np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), expected)


def test_the_first_bytes_arrive_before_the_second_frame_exists(serve: Server) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)))
    with httpx.stream("POST", served.url + SPEECH, json={"input": TEXT}, timeout=HANG_S) as response:
        parts = response.iter_raw()
        first = next(parts)
        more.set()
        rest = b"".join(parts)
    assert len(first) == 44 + 1920 * 2
    assert len(first + rest) == 44 + 30 * 1920 * 2


def test_events_carry_the_same_audio(serve: Server) -> None:
    served = serve()
    response = post(served, seed=5, response_format="pcm", stream_format="sse")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    np.testing.assert_array_equal(np.frombuffer(audio, "<i2"), pcm16(served, seed=5))
    assert events[-1]["type"] == "speech.audio.done"
    assert (events[-1]["facts"]["finish_reason"], events[-1]["facts"]["frames"]) == ("eos", 30)


# ---- clients that go away


def test_a_client_that_goes_away_frees_its_row(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    with httpx.stream("POST", served.url + SPEECH, json={"input": TEXT}, timeout=HANG_S) as response:
        parts = response.iter_raw()  # kept: without it the connection closes
        next(parts)
        assert fakes.loaded["fake"].streams
    eventually(lambda: served.rows_free(fakes), "its row is free")
    eventually(lambda: not served.server.speaker.running, "the server has forgotten it")


def test_a_client_that_goes_away_while_it_waits_for_a_row_waits_no_more(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS, max_streams=1)
    with served.engine.speak(TEXT) as occupant:
        next(occupant)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(served.url + SPEECH, json={"input": TEXT}, timeout=0.3)
        eventually(lambda: served.engine.metrics().waiting == 0, "nothing waits")
        assert served.engine.metrics().active == 1
    assert fakes.loaded["fake"].issued == 1


def test_a_client_that_reads_nothing_for_too_long_is_dropped(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS, max_untaken_s=1.0, server={"send_timeout_s": 0.2})
    with httpx.stream("POST", served.url + SPEECH, json={"input": TEXT}, timeout=HANG_S):
        eventually(lambda: fakes.loaded["fake"].issued == 1 and served.rows_free(fakes), "its row is free")


# ---- errors


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        ({"input": ""}, 400, "the text is empty"),
        ({"input": 5}, 400, "input is 5"),
        ({"input": "x" * 30_000}, 400, "30000 characters"),
        ({"inptu": "Hi."}, 400, "unknown key 'inptu'"),
        ({"speed": 1.5}, 400, "speed is 1.5, expected 1"),
        ({"speed": "fast"}, 400, "speed is 'fast'"),
        ({"model": "tts-1"}, 404, "model is 'tts-1', expected 'tiny_custom_voice'"),
        ({"voice": "alloy"}, 400, "unknown speaker 'alloy'"),
        ({"language": "klingon"}, 400, "klingon"),
        ({"response_format": "mp3"}, 400, "'wav', 'pcm' or 'flac'"),
        ({"instructions": "a", "instruct": "b"}, 400, "give one of them"),
        ({"sampling": {"temperature": 0}}, 400, "temperature is 0"),
        ({"sampling": {"heat": 1}}, 400, "sampling has no 'heat'"),
        ({"seed": 2**64}, 400, "seed is"),
        ({"max_frames": 10**6}, 400, "max_frames is 1000000"),
    ],
)
def test_errors_name_their_type_and_what_is_wrong(
    serve: Server, body: dict[str, Any], status: int, complaint: str
) -> None:
    response = post(serve(), **body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (status, "InvalidRequestError")
    assert complaint in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "complaint"),
    [
        ("POST", SPEECH, b"nonsense", 400, "this is not JSON"),
        ("GET", SPEECH, b"", 405, "Method Not Allowed"),
        ("GET", "/v2/voices", b"", 404, "GET /v2/voices"),
        ("POST", SPEECH, b"x" * 5_000, 413, "max_message_bytes"),
        ("POST", SPEECH, iter([b"x" * 2_500] * 2), 413, "max_message_bytes"),
    ],
)
def test_what_is_no_request_has_the_same_kind_of_answer(
    serve: Server, method: str, path: str, content: Any, status: int, complaint: str
) -> None:
    served = serve(server={"max_message_bytes": 4_000})
    headers = {"content-type": "application/json"}
    response = httpx.request(method, served.url + path, content=content, headers=headers, timeout=HANG_S)
    assert response.status_code == status
    assert complaint in response.json()["error"]["message"]


def test_a_full_server_asks_to_try_again(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, max_streams=1, max_waiting=0)
    with served.engine.speak(TEXT) as occupant:
        next(occupant)
        response = post(served)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert response.json()["error"]["type"] == "CapacityError"


def test_an_error_before_the_first_chunk_is_a_status(serve: Server) -> None:
    def fail(call: int) -> None:
        raise RuntimeError("on fire")

    response = post(serve(fakes_with(on_decode=fail)))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "BackendFaultError"


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_an_error_later_breaks_audio_off_and_is_an_event(
    serve: Server, stream_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: int) -> None:
        if call == 5:
            raise RuntimeError("on fire")

    served = serve(fakes_with(on_decode=fail))
    if stream_format == "audio":
        with pytest.raises(httpx.RemoteProtocolError):
            post(served)
        assert "a response breaks off: BackendFaultError" in caplog.text
        assert "Exception in ASGI application" not in caplog.text
    else:
        last = post(served, stream_format="sse").text.split("\n\n")[-2]
        error = json.loads(last.removeprefix("data: "))
        assert (error["type"], error["error"]["type"]) == ("error", "BackendFaultError")


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
                eventually(lambda: server.started and app.state.speaker.ready, "the server is ready")
                assert httpx.post(url + SPEECH, json={"input": TEXT}).status_code == 200
                engine.close()
                response = httpx.post(url + SPEECH, json={"input": TEXT})
                assert (response.status_code, response.json()["error"]["type"]) == (503, "EngineClosedError")
                health = httpx.get(url + "/health")
                assert (health.status_code, health.json()["status"]) == (503, "failed")
            finally:
                server.should_exit = True
                thread.join(HANG_S)


# ---- about the server


def test_health_is_ready_only_after_warm_up(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = threading.Event()
    monkeypatch.setattr(FakeTalker, "warmup", lambda self: warm.wait(HANG_S))
    served = serve(ready=False)
    eventually(lambda: served.server.started, "the server answers")
    health = httpx.get(served.url + "/health")
    assert (health.status_code, health.json()["status"]) == (503, "warming up")
    response = post(served)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["type"] == "CapacityError"
    warm.set()
    eventually(lambda: httpx.get(served.url + "/health").status_code == 200, "the server is ready")
    assert httpx.get(served.url + "/health").json() == {"status": "ready", "backend": "fake", "codec": "noise"}
    assert post(served).status_code == 200


def test_a_server_whose_warm_up_fails_stops(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: FakeTalker) -> None:
        raise RuntimeError("no kernels today")

    monkeypatch.setattr(FakeTalker, "warmup", fail)
    served = serve(ready=False)
    served.thread.join(HANG_S)
    assert not served.thread.is_alive()
    assert "no kernels today" in str(served.server.failure)


def sample(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(line.rsplit(" ", 1)[1])


def test_metrics_count_what_happened(serve: Server) -> None:
    served = serve()
    post(served)
    post(served, max_frames=5)
    post(served, voice="nobody")
    talk = served.talk()
    talk.say("open", text=TEXT)
    talk.hear_all()
    talk.say("open", max_frames=2)
    talk.say("text", text=TEXT)
    talk.say("finish")
    talk.hear_all()
    response = httpx.get(served.url + "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    expected = {
        "megatalker_engine_streams_total": 4,
        "megatalker_engine_frames_total": 30 + 5 + 30 + 2,
        "megatalker_engine_cancelled_total": 0,
        "megatalker_engine_errors_total": 0,
        "megatalker_engine_switches_total": 0,
        "megatalker_engine_active": 0,
        "megatalker_engine_waiting": 0,
        'megatalker_engine_info{backend="fake",codec="noise"}': 1,
        'megatalker_utterances_total{finish_reason="eos",route="http"}': 1,
        'megatalker_utterances_total{finish_reason="max_frames",route="http"}': 1,
        'megatalker_utterances_total{finish_reason="eos",route="websocket"}': 1,
        'megatalker_utterances_total{finish_reason="max_frames",route="websocket"}': 1,
        'megatalker_refusals_total{error="InvalidRequestError",route="http"}': 1,
        'megatalker_ttfc_seconds_count{route="http"}': 2,
        'megatalker_ttfc_seconds_bucket{le="+Inf",route="websocket"}': 2,
        'megatalker_rtf_count{route="websocket"}': 1,
        'megatalker_rtf_count{route="http"}': 2,
        'megatalker_audio_seconds_total{route="http"}': 35 * 0.08,
        "megatalker_connections": 1,
    }
    assert {name: sample(response.text, name) for name in expected} == pytest.approx(expected)
    assert 0 < sample(response.text, 'megatalker_ttfc_seconds_sum{route="http"}') < 10


def test_metrics_name_faulty_backends(serve: Server) -> None:
    def fail(call: int) -> None:
        raise RuntimeError("broken")

    served = serve(Fakes(talkers={"first": Behaviour(on_decode=fail), "second": Behaviour()}))
    assert post(served).status_code == 200
    text = httpx.get(served.url + "/metrics").text
    assert sample(text, 'megatalker_engine_faulty{backend="talker first"}') == 1
    assert sample(text, "megatalker_engine_switches_total") == 1
    assert sample(text, 'megatalker_engine_info{backend="second",codec="noise"}') == 1


def test_the_documentation_of_the_api_is_served(serve: Server) -> None:
    schema = httpx.get(serve().url + "/openapi.json").json()
    assert {"/health", "/metrics", "/v1/audio/speech", "/v1/models", "/v1/voices"} <= set(schema["paths"])
    assert {"input", "voice", "response_format", "seed"} <= set(
        schema["components"]["schemas"]["SpeechRequest"]["properties"]
    )


def test_models_and_voices_are_listed(serve: Server) -> None:
    served = serve(server={"model": "our-voice"})
    (model,) = httpx.get(served.url + "/v1/models").json()["data"]
    assert (model["id"], model["checkpoint"], model["variant"]) == ("our-voice", "tiny_custom_voice", "custom_voice")
    assert model["sample_rate"] == 24_000
    assert "english" in model["languages"]
    voices = httpx.get(served.url + "/v1/voices").json()["data"]
    assert {"id": "ryan", "kind": "speaker"} in voices
    assert post(served, model="our-voice", voice="ryan").status_code == 200


def test_a_key_is_asked_for_where_one_is_set(serve: Server) -> None:
    served = serve(server={"api_key": "secret"})
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
        for method, path in (("POST", SPEECH), ("GET", "/v1/models"), ("GET", "/v1/voices")):
            response = httpx.request(method, served.url + path, headers=headers, json={"input": TEXT})
            assert response.status_code == 401
            assert "Authorization: Bearer KEY" in response.json()["error"]["message"]
        with pytest.raises(InvalidStatus) as refused:
            served.talk(additional_headers=headers)
        assert refused.value.response.status_code == 401
    key = {"Authorization": "Bearer secret"}
    assert httpx.post(served.url + SPEECH, headers=key, json={"input": TEXT}).status_code == 200
    talk = served.talk(additional_headers=key)
    talk.say("open", text="Hi.")
    assert talk.hear_all().last["type"] == "done"
    assert httpx.get(served.url + "/health").status_code == 200
    assert httpx.get(served.url + "/metrics").status_code == 200


# ---- voices that the server keeps


@pytest.fixture
def cloned(tiny_base: Checkpoint) -> Voice:
    generator = torch.Generator().manual_seed(1)
    groups, size = tiny_base.config.num_code_groups, tiny_base.codec_config.codebook_size
    return Voice(
        x_vector=torch.randn(tiny_base.config.talker.hidden_size, generator=generator),
        reference_codes=torch.randint(size, (7, groups), generator=generator),
        reference_text_ids=(1, 2, 3),
        checkpoint_fingerprint=tiny_base.fingerprint,
    )


def test_voice_files_are_served_by_name_and_taken_from_requests(
    tiny_base: Checkpoint, cloned: Voice, tmp_path: Path
) -> None:
    cloned.save(tmp_path / "anna.safetensors")
    with serving(tiny_base, server={"voices": tmp_path}) as served:
        assert httpx.get(served.url + "/v1/voices").json()["data"] == [{"id": "anna", "kind": "clone"}]
        expected = pcm16(served, voice=cloned, seed=4)
        content = base64.b64encode((tmp_path / "anna.safetensors").read_bytes()).decode()
        for wishes in ({"voice": "anna"}, {"voice_file": content}):
            response = post(served, seed=4, response_format="pcm", **wishes)
            np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), expected)
        assert "has no voice of its own" in post(served).json()["error"]["message"]


def test_a_voice_file_may_be_the_default_voice(tiny_base: Checkpoint, cloned: Voice, tmp_path: Path) -> None:
    cloned.save(tmp_path / "anna.safetensors")
    with serving(tiny_base, server={"voices": tmp_path}, voice="anna") as served:
        response = post(served, seed=4, response_format="pcm")
        np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), pcm16(served, voice=cloned, seed=4))


def test_impossible_voice_folders_are_refused_at_the_start(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    with Engine.open(checkpoint=tiny_custom_voice, registry=Fakes().registry) as engine:
        with pytest.raises(SettingsError, match="does not exist"):
            create_app(engine, ServerSettings(voices=tmp_path / "nowhere"))
        Voice.named("ryan").save(tmp_path / "ryan.safetensors")
        with pytest.raises(SettingsError, match="ryan are named like speakers"):
            create_app(engine, ServerSettings(voices=tmp_path))
        (tmp_path / "broken.safetensors").write_bytes(b"nothing")
        with pytest.raises(InvalidRequestError, match=r"broken.safetensors' is not a voice file"):
            create_app(engine, ServerSettings(voices=tmp_path))


# ---- where it listens


def test_an_address_in_use_or_impossible_is_refused_by_name(serve: Server) -> None:
    taken = int(serve().url.rsplit(":", 1)[1])
    with pytest.raises(SettingsError, match=f"port {taken}: Address already in use"):
        bind(ServerSettings(port=taken))
    with pytest.raises(SettingsError, match=r"host '203\.0\.113\.1'"):
        bind(ServerSettings(host="203.0.113.1"))


def test_it_serves_ipv6(serve: Server) -> None:
    served = serve(server={"host": "::1"})
    assert served.url.startswith("http://[::1]:")
    assert httpx.get(served.url + "/health").status_code == 200
