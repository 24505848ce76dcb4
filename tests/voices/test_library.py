"""Recorded voices in a folder: what is refused, what changes, what is kept, and that no voice becomes another."""

import json
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.voices import Voice
from megatalker.voices.cache import VoiceCache
from megatalker.voices.folder import Manifest, Recording, StorageFullError, add_recording, voices_in
from megatalker.voices.library import NICENESS, VoiceLibrary
from megatalker.voices.reference_checks import read_good_reference
from voice_recordings import WORDS, Samples, speech, wav
from waiting import HANG_S


def recording(pitch: float = 120.0, transcript: str | None = WORDS, summary: str = "") -> Recording:
    manifest = Manifest(summary=summary, in_context=transcript is not None)
    return Recording(manifest, wav(speech(pitch=pitch)), transcript)


# ---- the cache


class ManualClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def maker(made: list[str], name: str) -> Callable[[], Voice]:
    def make() -> Voice:
        made.append(name)
        return Voice.designed(name)

    return make


def test_the_cache_keeps_what_was_used_last_and_forgets_what_nobody_uses() -> None:
    clock, made = ManualClock(), list[str]()
    cache = VoiceCache(2, 10.0, clock)

    def get(name: str) -> str | None:
        clock.now += 1
        return cache.get(name.encode(), maker(made, name)).description

    assert [get(name) for name in "abacab"] == list("abacab")
    assert made == ["a", "b", "c", "b"], "c took the place of b, which nobody had used since"
    clock.now += 10
    assert len(cache) == 0
    assert get("a") == "a"
    assert made[-1] == "a"


def test_a_voice_is_made_once_for_all_who_wait_and_others_do_not_wait() -> None:
    cache, made, slow = VoiceCache(9, 99.0), list[str](), threading.Event()
    found: list[Voice] = []

    def make() -> Voice:
        assert slow.wait(HANG_S)
        return maker(made, "slow")()

    threads = [threading.Thread(target=lambda: found.append(cache.get(b"slow", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert cache.get(b"other", maker(made, "other")).description == "other"
    assert b"other" in cache
    assert b"slow" not in cache, "it is being made"
    slow.set()
    for thread in threads:
        thread.join(HANG_S)
    assert b"slow" in cache
    assert made == ["other", "slow"]
    assert len(set(map(id, found))) == 1


def test_a_failure_is_not_kept() -> None:
    cache, made = VoiceCache(9, 99.0), list[str]()

    def fail() -> Voice:
        raise InvalidRequestError("no voice today")

    with pytest.raises(InvalidRequestError, match="no voice today"):
        cache.get(b"a", fail)
    assert cache.get(b"a", maker(made, "a")).description == "a"


# ---- the library


def digest(samples: Samples) -> torch.Tensor:
    """Stands for a voice: as much of the recording as tells it from every other."""
    return torch.from_numpy(samples[2_000:2_016].copy())


@pytest.fixture
def clones() -> list[str | None]:
    """Transcripts of the recordings that were cloned."""
    return []


@pytest.fixture
def library(tiny_base: Checkpoint, tmp_path: Path, clones: list[str | None]) -> Callable[..., VoiceLibrary]:
    def clone(samples: Samples, transcript: str | None) -> Voice:
        clones.append(transcript)
        return Voice(x_vector=digest(samples))

    def opened(folder: Path = tmp_path, most: int = 9) -> VoiceLibrary:
        return VoiceLibrary(folder, tiny_base, VoiceCache(most, 99.0), 30.0, clone)

    return opened


def same(voice: Voice | None, pitch: float) -> bool:
    assert voice is not None
    assert voice.x_vector is not None
    expected = digest(read_good_reference(wav(speech(pitch=pitch)), None, 30.0))
    return torch.equal(voice.x_vector, expected)


def test_a_recorded_voice_is_cloned_once_and_kept_for_the_next_process(
    library: Callable[..., VoiceLibrary], tmp_path: Path, clones: list[str | None]
) -> None:
    first = library()
    first.add("anna", recording(summary="calm"))
    first.add("bert", recording(200, transcript=None))
    assert clones == [WORDS, None]
    again = library()
    assert [(name, entry.kind, entry.summary) for name, entry in again.items()] == [
        ("anna", "clone", "calm"),
        ("bert", "clone", ""),
    ]
    assert same(again.get("anna"), 120)
    assert same(again.get("bert"), 200)
    assert len(clones) == 2
    assert again.get("carl") is None
    (tmp_path / "anna" / "transcript.txt").write_text(WORDS + " And more.")
    again.refresh()
    again.get("anna")
    assert clones[2:] == [WORDS + " And more."], "another transcript is another voice"
    assert len(list((tmp_path / "anna").glob("encoded-*"))) == 1, "what no longer holds is gone"
    again.remove("anna")
    assert not (tmp_path / "anna").exists()
    assert again.get("anna") is None


def test_what_changes_in_the_folder_changes_in_the_library(
    library: Callable[..., VoiceLibrary], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    voices = library()
    add_recording(tmp_path, "anna", recording(), 30.0)
    assert voices.get("anna") is None
    voices.refresh()
    assert same(voices.get("anna"), 120)
    (tmp_path / "anna" / "reference.wav").write_bytes(wav(np.clip(4 * speech(), -1, 1)))
    voices.refresh()
    assert "voice 'anna' cannot be used" in caplog.text
    with pytest.raises(InvalidRequestError, match="voice 'anna': the reference audio is clipped"):
        voices.get("anna")
    assert dict(voices.items()) == {}
    (tmp_path / "anna" / "reference.wav").write_bytes(wav(speech(pitch=180)))
    voices.refresh()
    assert same(voices.get("anna"), 180)


def test_a_voice_that_changes_between_look_and_use_is_not_mixed(
    library: Callable[..., VoiceLibrary], tmp_path: Path
) -> None:
    add_recording(tmp_path, "anna", recording(), 30.0)
    voices = library()
    (tmp_path / "anna" / "reference.wav").write_bytes(wav(speech(pitch=180)))
    with pytest.raises(InvalidRequestError, match="being changed; ask again"):
        voices.get("anna")
    voices.refresh()
    assert same(voices.get("anna"), 180)


def test_a_look_at_the_folder_that_began_earlier_hides_no_newer_voice(
    library: Callable[..., VoiceLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = library()
    listed, go_on = threading.Event(), threading.Event()

    def list_and_wait(folder: Path) -> dict[str, Path]:
        found = voices_in(folder)
        if not listed.is_set():
            listed.set()
            assert go_on.wait(HANG_S)
        return found

    monkeypatch.setattr("megatalker.voices.library.voices_in", list_and_wait)
    earlier, later = threading.Thread(target=voices.refresh), threading.Thread(target=voices.refresh)
    earlier.start()
    assert listed.wait(HANG_S)
    Voice.designed("calm").save(tmp_path / "new.safetensors")
    later.start()
    later.join(0.5)
    go_on.set()
    for look in (earlier, later):
        look.join(HANG_S)
    assert "new" in voices


def test_no_voice_becomes_another_however_many_ask(library: Callable[..., VoiceLibrary], tmp_path: Path) -> None:
    """The cache is too small, voices are replaced meanwhile, and many callers ask at once."""
    pitches = {"a": [110.0], "b": [140.0], "c": [170.0], "d": [200.0, 230.0]}
    for name, own in pitches.items():
        add_recording(tmp_path, name, recording(own[0]), 30.0)
    voices, wrong, done = library(most=2), list[str](), threading.Event()
    kept = {
        pitch: digest(read_good_reference(wav(speech(pitch=pitch)), None, 30.0))
        for own in pitches.values()
        for pitch in own
    }

    def ask(seed: int) -> None:
        order = random.Random(seed)
        for _ in range(60):
            name = order.choice("abcd")
            try:
                voice = voices.get(name)
            except InvalidRequestError as error:
                if "being changed" not in str(error):
                    wrong.append(str(error))
                continue
            if voice is None or not any(torch.equal(voice.x_vector, kept[pitch]) for pitch in pitches[name]):
                wrong.append(name)

    def replace() -> None:
        files = [recording(pitch).reference for pitch in pitches["d"]]
        new = tmp_path / ".new"
        turn = 0
        while not done.is_set():
            turn += 1
            new.write_bytes(files[turn % 2])
            new.rename(tmp_path / "d" / "reference.wav")
            voices.refresh()

    replacing = threading.Thread(target=replace)
    asking = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in (replacing, *asking):
        thread.start()
    for thread in asking:
        thread.join(HANG_S)
    done.set()
    replacing.join(HANG_S)
    assert not wrong


def broken(tmp_path: Path, change: str) -> None:
    path = tmp_path / "anna"
    match change:
        case "no reference":
            (path / "reference.wav").unlink()
        case "no transcript":
            (path / "transcript.txt").unlink()
        case "no manifest":
            (path / "manifest.json").unlink()
        case "unknown key":
            (path / "manifest.json").write_text(json.dumps({"sumary": "calm"}))
        case "no text":
            (path / "transcript.txt").write_bytes(b"\xff")
        case "an impossible name":
            path.rename(tmp_path / "an+na")
        case "two of a name":
            Voice.designed("x").save(tmp_path / "anna.safetensors")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("no reference", r"voice 'anna' cannot be read: .*reference\.wav"),
        ("no transcript", r"voice 'anna' cannot be read: .*transcript\.txt"),
        ("no manifest", r"voice 'anna' cannot be read: .*manifest\.json"),
        ("unknown key", r"manifest\.json: unknown key 'sumary'; did you mean 'summary'"),
        ("no text", "voice 'anna' cannot be read: .*UTF-8"),
        ("an impossible name", r"cannot be named 'an\+na'"),
        ("two of a name", r"two voices are named 'anna'"),
    ],
)
def test_a_folder_with_a_fault_is_refused_at_the_start(
    library: Callable[..., VoiceLibrary], tmp_path: Path, change: str, complaint: str
) -> None:
    add_recording(tmp_path, "anna", recording(), 30.0)
    broken(tmp_path, change)
    with pytest.raises(InvalidRequestError, match=complaint):
        library()


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", ".hidden", "-x", "a" * 65, "a\n"])
def test_no_name_leaves_the_folder(library: Callable[..., VoiceLibrary], tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be named"):
        library().add(name, recording())
    with pytest.raises(InvalidRequestError, match="cannot be named"):
        library().remove(name)
    assert not list(tmp_path.iterdir())


def test_a_voice_that_cannot_be_cloned_is_not_kept(
    library: Callable[..., VoiceLibrary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = library()

    def fail(*_: object) -> Voice:
        raise InvalidRequestError("the encoder does not like it")

    monkeypatch.setattr(voices, "_clone", fail)
    with pytest.raises(InvalidRequestError, match="does not like it"):
        voices.add("anna", recording())
    assert not list(tmp_path.iterdir())


def test_recordings_need_a_checkpoint_that_clones(
    tiny_custom_voice: Checkpoint, tiny_base: Checkpoint, tmp_path: Path
) -> None:
    cache = VoiceCache(9, 99.0)
    with pytest.raises(InvalidRequestError, match="cloning needs a base model"):
        VoiceLibrary(tmp_path, tiny_custom_voice, cache, 30.0).add("anna", recording())
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidRequestError, match="named like a speaker"):
        VoiceLibrary(tmp_path, tiny_custom_voice, cache, 30.0).add("ryan", recording())
    with pytest.raises(InvalidRequestError, match="keeps no voices; its setting voices_dir"):
        VoiceLibrary(None, tiny_base, cache, 30.0).add("anna", recording())


def test_the_checkpoint_s_own_encoders_clone(tiny_base: Checkpoint, tmp_path: Path) -> None:
    voices = VoiceLibrary(tmp_path, tiny_base, VoiceCache(9, 99.0), 30.0)
    voices.add("anna", recording())
    voice = voices.get("anna")
    assert voice is not None
    assert voice.in_context
    assert voice.checkpoint_fingerprint == tiny_base.fingerprint


def test_of_two_ways_to_write_a_name_one_is_added(library: Callable[..., VoiceLibrary]) -> None:
    voices, found = library(), list[str]()

    def add(name: str) -> None:
        try:
            voices.add(name, recording())
            found.append("added")
        except InvalidRequestError as error:
            found.append("already" if "already" in str(error) else str(error))

    threads = [threading.Thread(target=add, args=(name,)) for name in ("zoë", "ZOË", "Zoe\u0308", "zoe\u0308")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(found) == ["added"] + ["already"] * 3
    assert len(dict(voices.items())) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_one_thread_encodes_and_gives_way_to_others(tiny_base: Checkpoint, tmp_path: Path) -> None:
    seen: set[tuple[int, int]] = set()

    def clone(samples: Samples, _: str | None) -> Voice:
        seen.add((threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        return Voice(x_vector=digest(samples))

    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    voices = VoiceLibrary(tmp_path, tiny_base, VoiceCache(9, 99.0), 30.0, clone)
    adding = [
        threading.Thread(target=voices.add, args=(name, recording(pitch))) for name, pitch in (("a", 110), ("b", 140))
    ]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join(HANG_S)
    voices.close()
    [(encoder, priority)] = seen
    assert encoder != threading.get_native_id()
    assert priority == min(19, usual + NICENESS)


def test_nothing_half_written_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *arguments: Any, **options: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageFullError, match="No space left"):
        add_recording(tmp_path, "anna", recording(), 30.0)
    assert not list(tmp_path.iterdir())
    shutil.rmtree(tmp_path)
