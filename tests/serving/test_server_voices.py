"""``/v1/voices``: adding, listing and removing voices of a server, and what is not allowed."""

import threading
import unicodedata
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from http_client import SPEECH, post
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.serving import background
from megatalker.serving.protocol.voice_files import encode_voice
from megatalker.serving.server.keyring import hash_key
from megatalker.voices.folder import Manifest, Recording, add_recording
from serving import TEXT, Served, serving
from voice_recordings import WORDS, speech, wav
from waiting import HANG_S, eventually

pytestmark = pytest.mark.usefixtures("quick_clones")


def upload(served: Served, name: str, pitch: float = 120.0, headers: Any = None, **fields: str) -> httpx.Response:
    files = {"reference": ("any.wav", wav(speech(pitch=pitch)))}
    data = {"name": name, "transcript": WORDS} | fields
    return httpx.post(served.url + "/v1/voices", data=data, files=files, headers=headers, timeout=HANG_S)


def listed(served: Served) -> list[str]:
    return [entry["id"] for entry in httpx.get(served.url + "/v1/voices").json()["data"]]


def said(served: Served, voice: str, seed: int = 3) -> bytes:
    return post(served, voice=voice, seed=seed, response_format="pcm").raise_for_status().content


def test_a_voice_is_added_spoken_with_and_removed(tiny_base: Checkpoint, tmp_path: Path) -> None:
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        added = upload(served, "anna", summary="calm")
        assert (added.status_code, added.json()) == (201, {"id": "anna", "kind": "clone", "summary": "calm"})
        assert upload(served, "bert", 200).status_code == 201
        assert listed(served) == ["anna", "bert"]
        assert said(served, "anna") != said(served, "bert")
        assert (tmp_path / "anna" / "transcript.txt").read_text().strip() == WORDS
        assert httpx.delete(served.url + "/v1/voices/anna").status_code == 204
        assert listed(served) == ["bert"]
        unknown = post(served, voice="anna")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "voice")
        assert "unknown voice 'anna'; this server keeps bert; POST" in unknown.json()["error"]["message"]
        unnamed = post(served)
        assert (unnamed.status_code, "this server keeps bert; POST" in unnamed.json()["error"]["message"]) == (
            400,
            True,
        )
        assert not (tmp_path / "anna").exists()
        assert upload(served, "anna", 230).status_code == 201, "the name is free again"
        assert said(served, "anna") != said(served, "bert")


def test_impossible_changes_of_voices_are_refused(tiny_base: Checkpoint, tmp_path: Path) -> None:
    with serving(tiny_base, server={"voices_dir": tmp_path, "max_upload_bytes": 200_000}) as served:
        upload(served, "anna")
        for response, status, complaint in (
            (upload(served, "anna"), 409, "there is a voice 'anna' already"),
            (upload(served, "../anna"), 400, "cannot be named"),
            (upload(served, "bert", transcript="Yes."), 400, "the transcript has 3 letters"),
            (httpx.delete(served.url + "/v1/voices/bert"), 404, "keeps no voice 'bert'"),
            (httpx.post(served.url + "/v1/voices", data={"name": "bert"}), 400, "reference is missing"),
        ):
            assert (response.status_code, complaint in response.json()["error"]["message"]) == (status, True)
        files = {"reference": ("any.wav", wav(speech(20)))}
        long = httpx.post(served.url + "/v1/voices", data={"name": "bert"}, files=files)
        assert (long.status_code, "max_upload_bytes" in long.json()["error"]["message"]) == (413, True)
        assert listed(served) == ["anna"]


@pytest.mark.parametrize("name", ["สมชาย", "हिन्दी", "Anna Lena", "d'Artagnan", "Nguyễn", "字" * 60])
def test_names_of_all_scripts_go_over_http(tiny_base: Checkpoint, tmp_path: Path, name: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        assert upload(served, decomposed).json()["id"] == composed
        assert upload(served, composed.upper()).status_code == 409
        assert listed(served) == [composed]
        assert said(served, composed) == said(served, decomposed.upper())
        with served.talk("/api/v1/speak") as talk:
            talk.say("start", speaker=decomposed)
            assert talk.hear_event()["type"] == "ready"
        assert httpx.delete(f"{served.url}/v1/voices/{quote(decomposed.upper())}").status_code == 204
        assert httpx.delete(f"{served.url}/v1/voices/{quote(composed)}").status_code == 404
        assert listed(served) == []


def test_a_voice_goes_before_an_alias_however_it_is_written(tiny_base: Checkpoint, tmp_path: Path) -> None:
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        upload(served, "aaa", 200)
        upload(served, "Alloy")
        assert said(served, "alloy") == said(served, "Alloy") != said(served, "aaa")


def test_faults_of_a_recording_are_reported(tiny_base: Checkpoint, tmp_path: Path) -> None:
    half = speech(2.4)
    paused = np.concatenate([half, np.zeros(48_000, np.float32), half])
    files = {"reference": ("voice.m4a", wav(paused))}
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        answer = httpx.post(served.url + "/v1/voices", data={"name": "anna", "transcript": WORDS}, files=files)
        assert answer.status_code == 201
        [warning] = answer.json()["warnings"]
        assert "has a pause of 2." in warning


def test_only_keys_that_may_manage_voices_do(tiny_base: Checkpoint, tmp_path: Path) -> None:
    keys = {
        "anna": {"hash": hash_key("mt-a"), "manage_voices": True, "requests_per_minute": 1},
        "bert": {"hash": hash_key("mt-b")},
    }
    with serving(tiny_base, server={"voices_dir": tmp_path, "keys": keys}) as served:
        anna, bert = ({"Authorization": f"Bearer {key}"} for key in ("mt-a", "mt-b"))
        refused = upload(served, "new", headers=bert)
        assert (refused.status_code, "manage_voices" in refused.json()["error"]["message"]) == (403, True)
        assert upload(served, "new", headers=anna).status_code == 201
        assert httpx.delete(served.url + "/v1/voices/new", headers=bert).status_code == 403
        assert httpx.delete(served.url + "/v1/voices/new", headers=anna).status_code == 429, "deleting counts, too"
        body = {"input": "Hi.", "voice": "new"}
        assert httpx.post(served.url + SPEECH, json=body, headers=bert).status_code == 200, "all may use the voice"


def test_a_server_without_a_folder_keeps_no_voices(tiny_base: Checkpoint) -> None:
    with serving(tiny_base) as served:
        response = upload(served, "anna")
        assert (response.status_code, "voices_dir" in response.json()["error"]["message"]) == (400, True)


def test_the_server_follows_its_folder(tiny_base: Checkpoint, tmp_path: Path) -> None:
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        assert listed(served) == []
        manifest = Manifest(summary="calm")
        add_recording(tmp_path, "anna", Recording(manifest, wav(speech()), WORDS), 30.0)
        eventually(lambda: listed(served) == ["anna"], "the new voice is served")
        first = said(served, "anna")
        (tmp_path / "anna" / "reference.wav").write_bytes(wav(speech(pitch=200)))
        eventually(lambda: post(served, voice="anna", seed=3, response_format="pcm").content != first, "it has changed")


def test_a_front_end_knows_at_once_what_another_one_was_given(
    tiny_base: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "POLL_PERIOD_S", 1e6)
    with ExitStack() as stack:
        one, other = (stack.enter_context(serving(tiny_base, server={"voices_dir": tmp_path})) for _ in range(2))
        assert upload(one, "anna").status_code == 201
        assert said(other, "anna") == said(one, "anna")
        assert upload(other, "anna").status_code == 409
        assert upload(one, "bert").status_code == 201
        assert listed(other) == ["anna", "bert"]
        assert upload(other, "carl").status_code == 201
        assert httpx.delete(one.url + "/v1/voices/carl").status_code == 204


def test_slow_checks_run_outside_the_event_loop(
    tiny_base: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[bool] = []
    speak = Engine.speak_for

    def noted(self: Engine, *arguments: Any, **changes: Any) -> Any:
        beside.append(threading.current_thread().name != "test-server")
        return speak(self, *arguments, **changes)

    monkeypatch.setattr(Engine, "speak_for", noted)
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        upload(served, "anna")
        for wishes in (
            {},
            {"input": "Hello there. " * 50},
            {"instruct": "Calmly. " * 80},
            {"voice": None, "voice_file": encode_voice(served.server.service.voices.get("anna"))},
        ):
            post(served, **{"voice": "anna", "response_format": "pcm"} | wishes).raise_for_status()
    assert beside == [False, True, True, True]
    beside.clear()
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        said(served, "anna"), said(served, "anna")
    assert beside == [True, False], "the first one reads the voice"


def test_voices_do_not_leak_into_each_other_under_load(tiny_base: Checkpoint, tmp_path: Path) -> None:
    """Each voice, asked for by many at once and squeezed through a cache for one, sounds as it does alone."""
    pitches = {"a": 110.0, "b": 150.0, "c": 190.0}
    for name, pitch in pitches.items():
        add_recording(tmp_path, name, Recording(Manifest(), wav(speech(pitch=pitch)), WORDS), 30.0)
    options = {"voices_dir": tmp_path, "voice_cache_size": 1}
    with serving(tiny_base, server=options, max_streams=8, max_waiting=99) as served:
        alone = {name: said(served, name) for name in pitches}
        assert len(set(alone.values())) == 3
        files = {name: encode_voice(served.server.service.voices.get(name)) for name in pitches}
        wrong: list[str] = []

        def ask(number: int) -> None:
            for turn in range(6):
                name = "abc"[(number + turn) % 3]
                who = {"voice": name} if (number + turn) % 2 else {"voice_file": files[name]}
                body = {"input": TEXT, "seed": 3, "response_format": "pcm", **who}
                if httpx.post(served.url + SPEECH, json=body, timeout=HANG_S).content != alone[name]:
                    wrong.append(name)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert not wrong


def test_voices_that_the_server_keeps_are_mixed_by_name(tiny_base: Checkpoint, tmp_path: Path) -> None:
    with serving(tiny_base, server={"voices_dir": tmp_path}) as served:
        for name, pitch in (("anna", 120), ("bert", 230)):
            assert upload(served, name, pitch).status_code == 201
        mixed = said(served, "anna:0.6+bert:0.4")
        assert mixed not in (said(served, "anna"), said(served, "bert"))
        assert said(served, "Anna:3+bert:2") == mixed, "weights count relative to their sum"
        assert said(served, "anna:1.0") == said(served, "anna")
        for name, complaint in (
            ("anna+carl", "unknown voice 'carl'"),
            ("anna:nan+bert", "a weight of a mixed voice is"),
        ):
            refused = post(served, voice=name)
            assert (refused.status_code, complaint in refused.json()["error"]["message"]) == (400, True)


def test_aliases_may_be_mixed(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, server={"voice_aliases": {"tom": "ryan"}}) as served:
        assert said(served, "tom:0.6+serena:0.4") == said(served, "ryan:0.6+serena:0.4")
