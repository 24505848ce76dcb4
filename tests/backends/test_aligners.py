"""Pocketsphinx on the demo voice, and Qwen3-ForcedAligner as its package wants to be asked."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from megatalker import Engine
from megatalker.checkpoint import Checkpoint
from megatalker.engine import aligned_words
from megatalker.errors import MalformedResultError, UnsupportedError
from megatalker.plugins.aligner import Aligner, SpokenSegment
from megatalker_backends.aligners import qwen, sphinx

FIRST, SECOND = "Good morning.", "Your table is ready."
PAUSE_S = 1.0


@pytest.fixture(scope="module")
def pocketsphinx() -> Aligner:
    pytest.importorskip("pocketsphinx")
    return sphinx.load()


@pytest.fixture(scope="module")
def speech(demo: Checkpoint) -> Any:
    """Words with estimates and audio of two sentences with a pause of known length between them."""
    with Engine.open(checkpoint=demo, backend="compiled", backends={"compiled": {"compile": "off"}}) as engine:
        stream = engine.speak(
            f"{FIRST}[pause:1s]{SECOND}", markup="tags", voice="mina", seed=1, word_times=True, return_codes=True
        )
        chunks = list(stream)
    (pause,) = [chunk for chunk in chunks if not chunk.frames]
    return np.concatenate([chunk.pcm for chunk in chunks]), pause.sample_offset / 24_000, stream.take_words()


def segment_of(text: str, samples: Any, language: str | None = None) -> SpokenSegment:
    return SpokenSegment(text, tuple(text.split()), language, samples)


def test_words_begin_where_they_are_spoken(pocketsphinx: Aligner, speech: Any) -> None:
    """The last word before the silence ends there, and the first one after it begins there, within 0.15 s."""
    samples, pause_s, _ = speech
    times = pocketsphinx.align(segment_of(f"{FIRST} {SECOND}", samples))
    begins = [begin for begin, _ in times]
    assert begins == sorted(begins)
    loud = np.flatnonzero(np.abs(samples) > 0.01) / 24_000
    assert times[0][0] == pytest.approx(loud[0], abs=0.1)
    assert times[1][1] == pytest.approx(loud[loud < pause_s + 0.1][-1], abs=0.15)
    assert times[2][0] == pytest.approx(loud[loud > pause_s + 0.5][0], abs=0.15)
    assert times[-1][1] == pytest.approx(loud[-1], abs=0.15)


def test_an_engine_tells_what_pocketsphinx_finds(
    pocketsphinx: Aligner, demo: Checkpoint, speech: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aligned_words, "load_aligner", lambda name: pocketsphinx)
    settings: dict[str, Any] = {"backend": "compiled", "backends": {"compiled": {"compile": "off"}}}
    with Engine.open(checkpoint=demo, aligner="pocketsphinx", **settings) as engine:
        stream = engine.speak(f"{FIRST} {SECOND}", voice="mina", seed=1, word_times=True)
        samples, words = stream.read_all(), stream.take_words()
    assert not any(word.estimated for word in words)
    expected = pocketsphinx.align(segment_of(f"{FIRST} {SECOND}", samples))
    assert [(word.begins_s, word.ends_s) for word in words] == [pytest.approx(pair) for pair in expected]


@pytest.mark.parametrize("odd", ["Qwertzy", "£5", "don\u2019t", "caf\u00e9"])
def test_words_that_no_dictionary_has_are_placed_between_their_neighbours(
    pocketsphinx: Aligner, speech: Any, odd: str
) -> None:
    samples, _, _ = speech
    times = pocketsphinx.align(segment_of(f"Good {odd} Your table is ready.", samples))
    assert len(times) == 6
    begins = [begin for begin, _ in times]
    assert begins == sorted(begins)
    assert all(0 <= begin <= end <= len(samples) / 24_000 for begin, end in times)


def test_a_decoder_that_has_learned_many_words_begins_anew(
    pocketsphinx: Any, speech: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sphinx, "MOST_ADDED_WORDS", 0)
    before = pocketsphinx._decoder()
    pocketsphinx.align(segment_of("Good zzyzzxy morning", speech[0]))
    assert pocketsphinx._decoder() is not before
    assert pocketsphinx._decoder().lookup_word("zzyzzxy") is None


def test_words_without_letters_have_no_length(pocketsphinx: Aligner, speech: Any) -> None:
    times = pocketsphinx.align(segment_of("\u4f60 \u597d", speech[0]))
    assert times == [(0.0, 0.0)] * 2


def test_other_languages_are_refused(pocketsphinx: Aligner, speech: Any) -> None:
    with pytest.raises(UnsupportedError, match="aligns English, and this is german"):
        pocketsphinx.align(segment_of("Guten Morgen", speech[0], "german"))


@pytest.mark.parametrize(
    ("load", "name", "advice"),
    [
        (sphinx.load, "pocketsphinx", r"pip install 'megatalker\[aligner\]'"),
        (qwen.load, "qwen_asr", "pip install --no-deps qwen-asr"),
    ],
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, load: Any, name: str, advice: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match=advice):
        load()


# ---- Qwen3-ForcedAligner


def test_qwen_is_asked_as_its_library_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class Qwen3ForcedAligner:
        @classmethod
        def from_pretrained(cls, name: str, dtype: torch.dtype, device_map: str) -> "Qwen3ForcedAligner":
            assert (name, dtype, device_map) == ("Qwen/Qwen3-ForcedAligner-0.6B", torch.float32, "cpu")
            return cls()

        def align(self, audio: tuple[Any, int], text: str, language: str) -> list[list[Any]]:
            assert (len(audio[0]), audio[1], text, language) == (24_000, 24_000, "Good morning.", "German")
            units = [("Good", 0.1, 0.3), ("morning", 0.4, 0.9)]
            return [[SimpleNamespace(text=unit, start_time=begin, end_time=end) for unit, begin, end in units]]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stand_in = ModuleType("qwen_asr")
    stand_in.__dict__["Qwen3ForcedAligner"] = Qwen3ForcedAligner
    monkeypatch.setitem(sys.modules, "qwen_asr", stand_in)
    segment = segment_of("Good morning.", np.zeros(24_000, np.float32), "german")
    assert qwen.load().align(segment) == [(0.1, 0.3), (0.4, 0.9)]


def test_times_go_from_letters_to_words() -> None:
    units = [("你", 0.0, 0.1), ("好", 0.1, 0.2), ("well", 0.3, 0.5)]
    assert qwen.by_letters(["你好,", "well."], units) == [(0.0, 0.2), (0.3, 0.5)]
    assert qwen.by_letters(["we", "ll"], [("we-ll", 0.3, 0.5)]) == [(0.3, 0.5)] * 2
    with pytest.raises(MalformedResultError, match="6 letters have times, expected 4"):
        qwen.by_letters(["well"], units)
