"""Odd texts of all of Unicode: spoken in full or refused."""

from collections.abc import Iterator

import pytest

from megatalker.engine import Engine
from megatalker.engine.text_segmenter import TextSegmenter
from megatalker_benchmarks.fuzz import fuzz, open_engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as engine:
        yield engine


def test_no_text_loses_a_letter(engine: Engine) -> None:
    figures = fuzz(engine, texts=300, seed=3)
    assert figures["failures"] == []
    assert figures["spoken"] > 150
    assert figures["refused"] < 30


def test_a_lost_letter_is_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = TextSegmenter.feed
    monkeypatch.setattr(TextSegmenter, "feed", lambda segmenter, text: feed(segmenter, text.replace("e", "")))
    figures = fuzz(engine, texts=60, seed=3)
    assert figures["failed"]
    assert all(failure["in_pieces"] for failure in figures["failures"])
