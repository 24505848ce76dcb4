"""Odd texts of all of Unicode at every face: spoken in full, or refused where there is nothing to say."""

import pytest

from megatalker.engine.speech.text_segmenter import TextSegmenter
from megatalker.engine.speech.word_times import WordClock
from megatalker.errors import UnsupportedError
from megatalker_benchmarks.fuzz import fuzz
from megatalker_benchmarks.fuzz_faces import FACES, load_face

TEXTS = 10 * len(FACES)


def test_no_text_loses_a_letter() -> None:
    figures = fuzz(list(FACES), TEXTS, seed=3)
    assert [failure for face in figures["faces"].values() for failure in face["failures"]] == []
    assert figures["faces"].keys() == FACES.keys()
    assert all(face["spoken"] for face in figures["faces"].values())


def test_a_lost_letter_is_found_at_every_face(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, feed = TextSegmenter.add_whole, TextSegmenter.feed
    monkeypatch.setattr(TextSegmenter, "add_whole", lambda segmenter, text: whole(segmenter, text[1:]))
    monkeypatch.setattr(TextSegmenter, "feed", lambda segmenter, text: feed(segmenter, text[1:]))
    figures = fuzz(list(FACES), TEXTS, seed=3)
    assert all(face["failed"] for face in figures["faces"].values())


def test_a_word_that_is_not_reported_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordClock, "feed", lambda *_: None)
    figures = fuzz(["python", "websocket", "livekit"], 12, seed=3)
    assert all(face["failed"] for face in figures["faces"].values())


def test_a_face_whose_package_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> object:
        if name == "livekit":
            raise UnsupportedError("livekit is missing")
        return load_face(name)

    monkeypatch.setattr("megatalker_benchmarks.fuzz.load_face", load)
    figures = fuzz(["python", "livekit"], 4, seed=3)
    assert figures["faces"]["python"]["texts"] == 4
    assert figures["skipped"] == {"livekit": "livekit is missing"}
