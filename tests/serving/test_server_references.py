"""Recordings that requests bring along: cloned, kept, bounded, and refused in words."""

import base64
import io
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from http_client import post
from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.serving.audio import to_pcm16
from megatalker.serving.protocol.reference_files import decode_reference
from megatalker.serving.protocol.voice_files import encode_voice
from megatalker.serving.server import references
from megatalker.voices import Voice, VoiceCloner
from serving import TEXT, Served, serving
from voice_recordings import WORDS, speech, wav
from waiting import HANG_S, eventually


def text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


REFERENCE = text_of(wav(speech(pitch=120)))
OTHER = text_of(wav(speech(pitch=200)))


class Clones:
    """Record of texts cloned and the threads that did it, with a gate to hold cloning back."""

    def __init__(self) -> None:
        self.texts: list[str | None] = []
        self.threads: set[str] = set()
        self.at_once = self.most_at_once = 0
        self.go_on = threading.Event()
        self.go_on.set()


@pytest.fixture
def clones(monkeypatch: pytest.MonkeyPatch, quick_clones: None) -> Clones:
    noted, quick = Clones(), VoiceCloner.clone

    def clone(self: Any, audio: Any, *, reference_text: str | None) -> Voice:
        noted.texts.append(reference_text)
        noted.threads.add(threading.current_thread().name)
        noted.at_once += 1
        noted.most_at_once = max(noted.at_once, noted.most_at_once)
        assert noted.go_on.wait(HANG_S)
        noted.at_once -= 1
        return quick(self, audio, reference_text=reference_text)

    monkeypatch.setattr(VoiceCloner, "clone", clone)
    return noted


@pytest.fixture
def served(tiny_base: Checkpoint, clones: Clones) -> Iterator[Served]:
    with serving(tiny_base, max_streams=8) as served:
        yield served


def said(served: Served, **body: Any) -> bytes:
    return post(served, seed=3, response_format="pcm", **body).raise_for_status().content


def complaint(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    message: str = response.json()["error"]["message"]
    return message


# ---- what is taken


def test_a_recording_in_the_request_speaks(served: Served, clones: Clones) -> None:
    first = said(served, ref_audio=REFERENCE, ref_text=WORDS)
    assert first != said(served, ref_audio=OTHER, ref_text=WORDS)
    url = "data:audio/wav;base64," + REFERENCE
    broken = "\n".join(REFERENCE[at : at + 76] for at in range(0, len(REFERENCE), 76))
    for form in (
        url,
        url.replace("=", "%3D"),
        broken,
        REFERENCE.rstrip("="),
        REFERENCE.replace("+", "-").replace("/", "_"),
    ):
        assert said(served, ref_audio=form, ref_text=f" {WORDS} ") == first
    assert said(served, ref_audio=REFERENCE, ref_text=WORDS, voice="alloy") == first, "OpenAI's client always names one"
    assert clones.texts == [WORDS, WORDS], "each recording is encoded once"
    assert all(name.startswith("megatalker-cloning") for name in clones.threads), clones.threads


def test_without_a_text_only_the_sound_is_cloned(served: Served, clones: Clones) -> None:
    said(served, ref_audio=REFERENCE)
    said(served, ref_audio=REFERENCE, ref_text="  ")
    said(served, ref_audio=REFERENCE, ref_text=WORDS, x_vector_only_mode=True)
    assert clones.texts == [None]
    said(served, ref_audio=REFERENCE, ref_text=WORDS, x_vector_only_mode=False)
    assert clones.texts == [None, WORDS]


def test_over_a_websocket_the_same_samples_come(served: Served) -> None:
    spoken = said(served, ref_audio=REFERENCE, ref_text=WORDS)
    with served.talk() as talk:
        talk.say("open", id="a", text=TEXT, seed=3, ref_audio=REFERENCE, ref_text=WORDS)
        heard = talk.hear_all("a")
        assert to_pcm16(heard.pcm("a")) == spoken
        assert "warnings" not in heard.events[0]
        talk.say("open", id="b", text=TEXT, ref_audio=REFERENCE, ref_text="Yes.")
        [warning] = talk.hear_all("b").events[0]["warnings"]
        assert "the transcript has 3 letters" in warning
        talk.say("open", id="c", text=TEXT, ref_audio="https://example.com/a.wav")
        assert "fetches nothing" in talk.hear_all("c").last["error"]["message"]


def test_a_poor_reference_speaks_and_is_told(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    fine = post(served, ref_audio=REFERENCE, ref_text=WORDS)
    assert "X-Megatalker-Warnings" not in fine.headers
    poor = post(served, ref_audio=REFERENCE, ref_text="Да.").raise_for_status()
    assert "the transcript has 2 letters for" in poor.headers["X-Megatalker-Warnings"]
    telephone = text_of(wav(speech(rate=8_000), 8_000))
    assert "sampled at 8000 Hz" in post(served, ref_audio=telephone).headers["X-Megatalker-Warnings"]


# ---- what is refused


def test_a_reference_that_is_no_recording_is_refused(served: Served) -> None:
    for reference, expected in (
        ("https://example.com/voice.wav", "ref_audio is an address, and this server fetches nothing"),
        ("file:///etc/passwd", "this server fetches nothing"),
        ("/etc/hostname.wav", "ref_audio is not base64; expected the content of an audio file"),
        ("data:audio/wav,RIFF", "without base64"),
        ("data:audio/wav;base64", "without base64"),
        ("é" * 99, "is not base64"),
        (text_of(b"no sound"), "is not audio that can be read"),
        (text_of(wav(speech())[:44]), "holds no sound"),
        (text_of(wav(speech(0.1))), "lasts 0.10 s"),
        (text_of(wav(np.zeros(48_000, np.float32))), "is silent"),
    ):
        message = complaint(post(served, ref_audio=reference))
        assert expected in message
        assert "0x" not in message
    for body, expected in (
        ({"ref_text": WORDS}, "ref_text goes with ref_audio, which is missing"),
        ({"ref_audio": REFERENCE, "ref_text": "a" * 200_000}, "ref_text has 200000 characters"),
        ({"ref_audio": REFERENCE, "voice_file": encode_voice(Voice.designed("calm"))}, "both say who speaks"),
    ):
        assert expected in complaint(post(served, **body))
    assert post(served, ref_audio="A" * 2_000_000).status_code == 413


def test_a_long_recording_is_refused_however_small_its_file(served: Served) -> None:
    hours, long = io.BytesIO(), io.BytesIO()
    soundfile.write(hours, np.zeros(2 * 3_600 * 8_000, np.int16), 8_000, format="FLAC")
    soundfile.write(long, speech(40), 24_000, format="OGG")
    assert "lasts 7200.00 s" in complaint(post(served, ref_audio=text_of(hours.getvalue())))
    message = complaint(post(served, ref_audio=text_of(long.getvalue()), ref_text=WORDS * 9))
    assert "lasts 40.00 s, expected at most 30 s where ref_text is given" in message


def test_a_checkpoint_that_does_not_clone_says_so(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice) as served:
        assert "cloning needs a base model" in complaint(post(served, ref_audio=REFERENCE))
        assert post(served, ref_audio="", ref_text="").status_code == 200, "as forms send what was not filled in"


def test_a_failure_is_not_kept(served: Served, clones: Clones, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = VoiceCloner.clone

    def fail(*_: Any, **__: Any) -> Voice:
        raise InvalidRequestError("no voice today")

    monkeypatch.setattr(VoiceCloner, "clone", fail)
    assert "no voice today" in complaint(post(served, ref_audio=REFERENCE))
    monkeypatch.setattr(VoiceCloner, "clone", clone)
    said(served, ref_audio=REFERENCE)
    assert served.server.service.references._waiting == {}


# ---- while others speak


def ask(served: Served, found: list[int], **body: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(post(served, **body).status_code))
    thread.start()
    return thread


def test_while_one_is_encoded_others_speak_and_equal_ones_wait_for_it(served: Served, clones: Clones) -> None:
    said(served, ref_audio=OTHER)
    clones.go_on.clear()
    found: list[int] = []
    threads = [ask(served, found, ref_audio=REFERENCE) for _ in range(12)]
    eventually(lambda: len(clones.texts) == 2, "one is being encoded")
    said(served, ref_audio=OTHER)
    assert not found
    clones.go_on.set()
    for thread in threads:
        thread.join(HANG_S)
    assert found == [200] * 12
    assert len(clones.texts) == 2


def test_one_owner_has_few_recordings_waiting_and_one_is_encoded_at_a_time(
    served: Served, clones: Clones, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "MAX_WAITING_OF_ONE", 3)
    clones.go_on.clear()
    found: list[int] = []
    waiting = served.server.service.references._waiting
    threads = [ask(served, found, ref_audio=text_of(wav(speech(pitch=100.0 + 5 * at)))) for at in range(3)]
    eventually(lambda: waiting.total() == 3, "all are waiting")
    refused = post(served, ref_audio=REFERENCE)
    assert "too many recordings wait" in complaint(refused, 429)
    assert int(refused.headers["Retry-After"]) >= 1
    clones.go_on.set()
    for thread in threads:
        thread.join(HANG_S)
    assert found == [200] * 3
    assert clones.most_at_once == 1
    assert waiting == {}
    assert said(served, ref_audio=REFERENCE)


def test_the_cache_is_bounded(tiny_base: Checkpoint, clones: Clones) -> None:
    with serving(tiny_base, server={"voice_cache_size": 2}) as served:
        for reference in (REFERENCE, OTHER, text_of(wav(speech(pitch=90))), REFERENCE):
            said(served, ref_audio=reference)
        assert len(clones.texts) == 4
        assert len(served.server.service.references._cache) == 2


def test_decoding_refuses_invalid_base64() -> None:
    assert decode_reference("data:audio/webm;codecs=opus;base64,AAEC") == b"\x00\x01\x02"
    assert decode_reference("AAEC") == decode_reference(" AA\r\nEC\t") == b"\x00\x01\x02"
    for text in ("A", "AA*A", "data:;base64,###", "AAEC\x00"):
        with pytest.raises(InvalidRequestError, match="is not base64"):
            decode_reference(text)


def test_a_form_takes_the_file_itself(served: Served) -> None:
    expected = said(served, ref_audio=REFERENCE, ref_text=WORDS)
    form = {"input": TEXT, "seed": "3", "response_format": "pcm", "ref_text": WORDS}
    files = {"ref_audio": ("phone.wav", wav(speech(pitch=120)), "audio/wav")}
    answer = httpx.post(served.url + "/v1/audio/speech", data=form, files=files, timeout=HANG_S)
    assert answer.raise_for_status().content == expected
    mode = {"x_vector_only_mode": "true"}
    assert httpx.post(served.url + "/v1/audio/speech", data=form | mode, files=files, timeout=HANG_S).status_code == 200
    bad = httpx.post(served.url + "/v1/audio/speech", data=form, files={"ref_audio": ("a.wav", b"no sound")})
    assert "is not audio that can be read" in complaint(bad)
    large = {"ref_audio": ("a.wav", wav(speech(30)))}
    assert httpx.post(served.url + "/v1/audio/speech", data=form, files=large).status_code == 413
