"""Information that a server gives about itself, its voices, its key and its address."""

import base64
import re
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from websockets.exceptions import InvalidStatus

from fake_backend import Behaviour, Fakes, FakeTalker
from http_client import SPEECH, pcm16, post
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.errors import InvalidRequestError, SettingsError
from megatalker.serving.server.address import bind
from megatalker.serving.server.app import create_app
from megatalker.settings import ServerSettings
from megatalker.voices import Voice
from serving import TEXT, Server, serving
from waiting import HANG_S, eventually

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


def test_preparation_in_the_background_is_reported(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def prepare(self: FakeTalker) -> str:
        if failed.is_set():
            raise RuntimeError("no room")
        return "frames of 4 streams"

    monkeypatch.setattr(FakeTalker, "prepare", prepare)
    url = serve().url

    def told(what: str) -> tuple[str | None, float]:
        answer = httpx.get(url + "/ready")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        return answer.json().get(what), sample(httpx.get(url + "/metrics").text, f"megatalker_engine_{what}")

    eventually(lambda: told("preparing") == ("frames of 4 streams", 1), "the backend was asked")
    assert told("unprepared") == (None, 0)
    failed.set()
    eventually(lambda: told("unprepared") == ("RuntimeError: no room", 1), "it was asked again")
    assert told("preparing") == (None, 0)


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


def test_metrics_count_requests_and_utterances(serve: Server) -> None:
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
        "megatalker_engine_tokens_total": 16 * (30 + 5 + 30 + 2),
        "megatalker_engine_cancelled_total": 0,
        "megatalker_engine_errors_total": 0,
        "megatalker_engine_switches_total": 0,
        "megatalker_engine_begun_total": 4,
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


def test_metrics_tell_of_streams_without_work_and_of_rows_that_they_lent(serve: Server) -> None:
    served = serve(max_streams=1)
    talk = served.talk()
    talk.say("open")
    talk.say("text", text="It is ten ")
    assert talk.hear_event()["type"] == "opened"
    talk.hear_packet()
    post(served)
    text = httpx.get(served.url + "/metrics").text
    assert sample(text, "megatalker_engine_idle") == 1
    assert sample(text, "megatalker_engine_lent_total") == 1


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


def test_the_pages_of_the_documentation_need_no_other_server(serve: Server) -> None:
    served = serve(server={"api_key": "secret"})
    page = httpx.get(served.url + "/docs").text
    links = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)""", page)
    assert len(links) >= 3
    for link in links:
        assert not re.match(r"/|\w+:", link), "nothing from elsewhere, under any prefix"
        assert httpx.get(f"{served.url}/{link}").status_code == 200


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
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        entry = {"id": "anna", "kind": "clone", "summary": ""}
        assert httpx.get(served.url + "/v1/voices").json()["data"] == [entry]
        expected = pcm16(served, voice=cloned, seed=4)
        content = base64.b64encode((tmp_path / "anna.safetensors").read_bytes()).decode()
        for wishes in ({"voice": "anna"}, {"voice_file": content}):
            response = post(served, seed=4, response_format="pcm", **wishes)
            np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), expected)
        assert "has no voice of its own" in post(served).json()["error"]["message"]


def test_a_voice_file_may_be_the_default_voice(tiny_base: Checkpoint, cloned: Voice, tmp_path: Path) -> None:
    cloned.save(tmp_path / "anna.safetensors")
    with serving(tiny_base, server={"voices_dir": tmp_path}, voice="anna") as served:
        response = post(served, seed=4, response_format="pcm")
        np.testing.assert_array_equal(np.frombuffer(response.content, "<i2"), pcm16(served, voice=cloned, seed=4))


def test_impossible_voice_folders_are_refused_at_the_start(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    with Engine.open(checkpoint=tiny_custom_voice, registry=Fakes().registry) as engine:
        with pytest.raises(InvalidRequestError, match="does not exist"):
            create_app(engine, ServerSettings(voices_dir=tmp_path / "nowhere"))
        Voice.named("ryan").save(tmp_path / "ryan.safetensors")
        with pytest.raises(InvalidRequestError, match="'ryan' is named like a speaker"):
            create_app(engine, ServerSettings(voices_dir=tmp_path))
        (tmp_path / "broken.safetensors").write_bytes(b"nothing")
        with pytest.raises(InvalidRequestError, match=r"broken.safetensors' is not a voice file"):
            create_app(engine, ServerSettings(voices_dir=tmp_path))


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
