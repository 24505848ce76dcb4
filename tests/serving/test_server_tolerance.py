"""The server as clients of other servers meet it: what they send unasked, whole files, texts without a sound."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import av
import httpx
import numpy as np
import pytest
import soundfile

from http_client import SPEECH, pcm16, post
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with
from waiting import HANG_S, eventually

KOKORO = {
    "model": "kokoro",
    "voice": "alloy",
    "response_format": "wav",
    "download_format": "wav",
    "speed": 1,
    "stream": True,
    "return_download_link": False,
    "lang_code": "a",
    "volume_multiplier": 1.0,
    "normalization_options": {"normalize": True},
}
OPENEDAI = {"model": "tts-1-hd", "voice": "onyx", "response_format": "WAV", "speed": "1.0", "user": "7"}
OMNI = {
    "model": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "voice": "ryan",
    "language": "English",
    "task_type": "CustomVoice",
    "max_new_tokens": 2048,
    "instructions": "",
    "stream": False,
    "response_format": "wav",
}
TAVERN = {"model": "tts-1", "voice": "nova", "response_format": "wav", "speed": 1, "instructions": None, "seed": -1}


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        (KOKORO, "download_format, return_download_link, volume_multiplier, normalization_options"),
        (OPENEDAI, "user"),
        (OMNI, "task_type"),
        (TAVERN, None),
    ],
)
def test_requests_of_other_servers_clients_are_spoken(
    shared: Served, body: dict[str, Any], ignored: str | None
) -> None:
    response = post(shared, **body)
    assert response.status_code == 200, response.text
    assert response.headers.get("x-megatalker-ignored") == ignored
    assert response.headers["x-megatalker-model"] == "tiny_custom_voice"
    samples, _ = soundfile.read(io.BytesIO(response.content), dtype="int16")
    assert len(samples) == 30 * 1920


def test_a_strict_server_refuses_undocumented_fields(serve: Server) -> None:
    served = serve(server={"strict": True})
    for body, status in (({"user": "me"}, 400), ({"speed": "1.0"}, 400), ({"model": "kokoro"}, 404)):
        assert post(served, **body).status_code == status
    talk = served.talk()
    talk.say("open", text="Hi.", seed="5")
    assert "seed is '5'" in talk.hear_event()["error"]["message"]


def test_ignored_names_cannot_break_the_answer_or_the_log(serve: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served = serve()
    evil = {"x\r\nSet-Cookie: a=b": 1, "🎉" * 500: 2, "\ud800": 3}
    response = httpx.post(served.url + SPEECH, content=json.dumps({"input": TEXT} | evil), timeout=HANG_S)
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    assert response.headers["x-megatalker-ignored"].startswith("x%0D%0ASet-Cookie")
    many = post(served, **{f"unknown{at}": at for at in range(40_000)})
    assert many.headers["x-megatalker-ignored"].endswith("unknown15, and 39984 more")
    lines = [record for record in caplog.records if record.getMessage() == "ignored"]
    assert [len(str(vars(line)["fields"])) < 1_000 for line in lines] == [True, True]


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        (None, b'{"input": "Hi."}'),
        ("text/plain", b'{"input": "Hi."}'),
        ("application/json; charset=utf-8", b'\xef\xbb\xbf{"input": "Hi."}'),
        ("application/x-www-form-urlencoded", b'{"input": "Hi."}'),
        ("application/x-www-form-urlencoded", b"input=Hi.&speed=1.5&seed=&voice=ryan"),
        ("application/octet-stream", '{"input": "Hi."}'.encode("utf-16")),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="input"\r\n\r\nHi.\r\n--x--\r\n',
        ),
    ],
)
def test_a_body_is_understood_under_any_content_type(shared: Served, content_type: str | None, content: bytes) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = httpx.post(shared.url + SPEECH, content=content, headers=headers, timeout=HANG_S)
    assert response.status_code == 200, response.text


@pytest.fixture
def _usual_recursion_limit() -> Iterator[None]:
    """The server runs in this process, where torch may have raised the limit when it compiled for another test."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("_usual_recursion_limit")
@pytest.mark.parametrize(
    ("content_type", "content", "complaint"),
    [
        ("application/json", b"", "input is missing"),
        ("application/json", b"null", "it should be an object"),
        ("application/json", b"[" * 50_000, "nested too deeply"),
        ("application/json", b'{"x": ' + b"[" * 800 + b"]" * 800 + b"}", "nested too deeply"),
        ("application/x-www-form-urlencoded", b"inptu=Hi.", "did you mean 'input'"),
        ("multipart/form-data", b"x", "boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\n", "input is missing"),
    ],
)
def test_any_other_body_is_refused(shared: Served, content_type: str, content: bytes, complaint: str) -> None:
    headers = {"content-type": content_type}
    response = httpx.post(shared.url + SPEECH, content=content, headers=headers, timeout=HANG_S)
    assert (response.status_code, complaint in response.json()["error"]["message"]) == (400, True), response.text


# ---- whole files


@pytest.mark.parametrize("file_format", ["wav", "flac", "mp3", "opus", "aac", "pcm"])
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_a_whole_file_states_its_length(shared: Served, file_format: str, speed: float) -> None:
    response = post(shared, stream=False, response_format=file_format, speed=speed, seed=5)
    assert response.status_code == 200
    assert int(response.headers["content-length"]) == len(response.content)
    assert "transfer-encoding" not in response.headers
    whole_s = 30 * 1920 / 24_000 / speed
    if file_format == "pcm":
        assert len(response.content) / 2 / 24_000 == pytest.approx(whole_s, rel=0.02)
        return
    if file_format in ("wav", "flac"):
        samples, rate = soundfile.read(io.BytesIO(response.content), dtype="int16")
        assert soundfile.info(io.BytesIO(response.content)).frames == len(samples)
        assert len(samples) / rate == pytest.approx(whole_s, rel=0.02)
        if speed == 1.0:
            np.testing.assert_array_equal(samples, pcm16(shared, seed=5))
    if file_format == "wav":
        begins = response.content.index(b"data") + 8
        assert int.from_bytes(response.content[begins - 4 : begins], "little") == len(response.content) - begins
    with av.open(io.BytesIO(response.content)) as file:
        heard = sum(frame.samples / frame.rate for frame in file.decode(audio=0))
        assert heard == pytest.approx(whole_s, rel=0.1)
        if file_format != "aac":
            assert file.duration / av.time_base == pytest.approx(whole_s, rel=0.1)


def test_a_long_file_is_whole(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than what is kept in memory, and than a piece that is sent."""
    monkeypatch.setattr("megatalker.serving.server.audio_response.MEMORY_BYTES", 1 << 14)
    served = serve(fakes_with(frames=300))
    response = post(served, stream=False, response_format="flac", seed=5)
    samples, _ = soundfile.read(io.BytesIO(response.content), dtype="int16")
    np.testing.assert_array_equal(samples, pcm16(served, seed=5))


def test_a_whole_file_that_fails_is_an_error(serve: Server) -> None:
    def fail(call: int) -> None:
        if call == 5:
            raise RuntimeError("on fire")

    served = serve(fakes_with(on_decode=fail))
    response = post(served, stream=False)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "BackendFaultError")
    assert not served.server.service.running


def test_a_client_that_goes_away_before_its_file_is_whole_frees_its_row(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(served.url + SPEECH, json={"input": TEXT, "stream": False, "response_format": "pcm"}, timeout=0.5)
    eventually(lambda: served.rows_free(fakes), "its row is free")
    eventually(lambda: not served.server.service.running, "the server has forgotten it")


# ---- nothing to say


@pytest.mark.parametrize("text", ["🎉", "...", "?!", "—"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_text_without_a_sound_is_20_ms_of_silence(shared: Served, text: str, stream: bool) -> None:
    for file_format in ("wav", "pcm", "flac", "mp3", "opus", "aac"):
        response = post(shared, input=text, response_format=file_format, stream=stream)
        assert response.status_code == 200, response.text
        if file_format == "pcm":
            assert response.content == bytes(960)
        else:
            with av.open(io.BytesIO(response.content)) as file:
                parts = [frame.to_ndarray() for frame in file.decode(audio=0)]
            assert sum(part.size for part in parts) > 0
            assert max(np.abs(part.astype(float)).max() for part in parts) < 0.001


# ---- sockets


def test_sockets_take_fields_of_other_clients_and_name_ignored_ones(shared: Served) -> None:
    talk = shared.talk()
    talk.say("open", text="Hi.", voice="", seed="5", temperature=0.5, speed=2, language="en-US", format="PCM16")
    opened = talk.hear_all().events[0]
    assert (opened["seed"], opened["format"], opened["ignored"]) == (5, "s16le", ["temperature", "speed"])
    talk.say("open", text="Hi.")
    assert "ignored" not in talk.hear_all().events[0], "clients of earlier versions do not know it"
    talk.say("open", text="Hi.", langauge="en")
    assert "did you mean 'language'" in talk.hear_event()["error"]["message"]
    plain = shared.talk("/api/v1/speak")
    plain.say("start", voice="ryan", lang="de-AT", seed=-1, user="me", max_new_tokens="12")
    assert json.loads(plain.socket.recv(HANG_S))["ignored"] == ["user"]


def test_half_a_pair_in_an_id_does_no_harm(shared: Served) -> None:
    talk = shared.talk()
    talk.socket.send('{"type": "open", "id": "a\\ud800", "text": "Hi."}')
    assert talk.hear_event()["id"] == "a\ufffd"
