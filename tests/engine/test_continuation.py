"""An utterance goes on in another engine with the codes, and the samples, that it would have had in the first."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Chunk, Continuation, Engine, SpeechStream
from megatalker.engine.speech.chunks import ChunkPolicy
from megatalker.settings import Settings

PARAGRAPHS = "Good morning. How are you?\n\nGood night, and thank you."
pytestmark = pytest.mark.slow

SETTINGS = {
    "device": "cpu",
    "backend": "compiled",
    "codec": "streaming",
    "backends": {"compiled": {"compile": "off"}},
    "max_frames": 60,
    "max_segment_frames": 25,
    "short_speech": "repeat",
}
"""Segments end by end of speech, too early and by their limit, and are spoken once more."""


@pytest.fixture(scope="module", params=["tiny_custom_voice", "demo"])
def engines(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    checkpoint: Checkpoint = request.getfixturevalue(request.param)
    settings = Settings.model_validate(SETTINGS)
    with Engine.open(settings, checkpoint=checkpoint) as one, Engine.open(settings, checkpoint=checkpoint) as other:
        yield one, other


def heard(stream: SpeechStream) -> list[Chunk]:
    return list(stream)


def codes_of(chunks: list[Chunk]) -> list[Any]:
    return [row for chunk in chunks if chunk.codes is not None for row in chunk.codes.tolist()]


def samples_of(chunks: list[Chunk]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([chunk.pcm for chunk in chunks]) if chunks else np.empty(0, np.float32)


@pytest.fixture(autouse=True)
def one_frame_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkPolicy, "target", property(lambda policy: 1, lambda policy, target: None))


def test_the_rest_is_the_same_wherever_it_stops(engines: tuple[Engine, Engine]) -> None:
    one, other = engines
    whole = heard(first := one.speak_for("", PARAGRAPHS, seed=3, return_codes=True))
    assert first.facts().segments > 1
    for heard_chunks in {0, 1, 3, len(whole) // 3, 2 * len(whole) // 3, len(whole) - 1, len(whole)}:
        after = Continuation.after(whole[:heard_chunks])
        stream = other.speak_for("", PARAGRAPHS, seed=3, return_codes=True, after=after)
        rest = heard(stream)
        assert codes_of(whole[:heard_chunks] + rest) == codes_of(whole)
        assert np.array_equal(samples_of(rest), samples_of(whole[heard_chunks:]))
        assert [chunk.sample_offset for chunk in rest[:1]] == [
            chunk.sample_offset for chunk in whole[heard_chunks:][:1]
        ]
        assert stream.finish_reason == first.finish_reason
        assert stream.facts().unsaid_chars == first.facts().unsaid_chars


def test_fed_text_goes_on_while_it_is_fed_again(engines: tuple[Engine, Engine]) -> None:
    one, other = engines
    text = "Good morning, how are you today? I am very well, thank you."
    words = [f"{word} " for word in text.split()]

    def spoken(engine: Engine, after: Continuation | None = None) -> list[Chunk]:
        stream = engine.speak_for("", None, seed=5, return_codes=True, after=after)
        for word in words:
            stream.feed(word)
        stream.finish()
        return heard(stream)

    whole = spoken(one)
    for heard_chunks in (1, 7, len(whole) // 2):
        rest = spoken(other, Continuation.after(whole[:heard_chunks]))
        assert codes_of(whole[:heard_chunks] + rest) == codes_of(whole)


def test_what_goes_on_can_stop_and_go_on_again(engines: tuple[Engine, Engine]) -> None:
    one, other = engines
    whole = heard(one.speak_for("", PARAGRAPHS, seed=6, return_codes=True))
    chunks = whole[:9]
    for engine in (other, one, other):
        with engine.speak_for(
            "", PARAGRAPHS, seed=6, return_codes=True, after=Continuation.after(chunks, ahead_s=0.5)
        ) as stream:
            chunks += [chunk for chunk, _ in zip(stream, range(8), strict=False)]
    assert codes_of(chunks) == codes_of(whole)[: len(codes_of(chunks))]
    assert len(codes_of(chunks)) > len(codes_of(whole[:9]))
