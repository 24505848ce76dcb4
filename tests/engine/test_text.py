"""How an utterance's text becomes segments, at once and bit by bit."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import text_ids
from megatalker.engine.speech.text_segmenter import TextSegmenter

TEXT = "First one here. Second, with 3.14 in it! 第三句话。第四句。 Fifth (in “quotes.”) And a last one, no end"


@pytest.fixture(scope="session")
def tokenizer(tiny_custom_voice: Checkpoint) -> Any:
    return tiny_custom_voice.tokenizer


def segments(segmenter: TextSegmenter) -> list[tuple[str, list[int]]]:
    return [(segment.text.strip(), segment.ids) for segment in segmenter.coming]


def fed(tokenizer: Any, pieces: list[str], max_chars: int) -> TextSegmenter:
    segmenter = TextSegmenter(tokenizer, max_chars)
    for piece in pieces:
        segmenter.feed(piece)
    segmenter.finish()
    return segmenter


def test_short_text_is_one_segment_with_the_official_ids(tokenizer: Any) -> None:
    whole = TextSegmenter(tokenizer, 400)
    whole.add(TEXT)
    whole.finish()
    assert segments(whole) == [(TEXT, text_ids(tokenizer, TEXT))]
    assert segments(fed(tokenizer, [TEXT], 400)) == segments(whole)


def test_arriving_text_is_cut_at_the_first_sentence_end_after_the_limit(tokenizer: Any) -> None:
    assert [text for text, _ in segments(fed(tokenizer, [TEXT], 12))] == [
        "First one here.",
        "Second, with 3.14 in it!",
        "第三句话。第四句。 Fifth (in “quotes.”)",
        "And a last one, no end",
    ]


def test_without_sentence_ends_a_space_and_then_any_place_will_do(tokenizer: Any) -> None:
    assert [text for text, _ in segments(fed(tokenizer, ["one two three four five"], 5))] == [
        "one two three",
        "four five",
    ]
    assert [text for text, _ in segments(fed(tokenizer, ["a" * 20], 2))] == ["a" * 8, "a" * 8, "a" * 4]


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12), max_chars=st.integers(1, 40))
def test_how_arriving_text_is_split_into_pieces_does_not_matter(
    tokenizer: Any, cuts: list[int], max_chars: int
) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in pairwise(places)]
    assert segments(fed(tokenizer, pieces, max_chars)) == segments(fed(tokenizer, [TEXT], max_chars))


def test_a_segment_can_begin_while_its_text_arrives_once_enough_is_certain(tokenizer: Any) -> None:
    segmenter = TextSegmenter(tokenizer, 400, ids_needed={"": 3})
    segmenter.feed("Some")
    assert not segmenter.can_begin, "the first word may still grow"
    segmenter.feed(" words to speak now ")
    assert segmenter.can_begin
    segmenter.begin()
    assert not segmenter.can_begin
    assert not segmenter.exhausted


def test_what_the_decoder_did_not_read_is_spoken_next(tokenizer: Any) -> None:
    segmenter = TextSegmenter(tokenizer, 400)
    segmenter.add("Hello wonderful world")
    segmenter.finish()
    segmenter.begin()
    ids = text_ids(tokenizer, "Hello wonderful world")
    segmenter.end(len(ids) - 1)
    assert segmenter.can_begin
    read = tokenizer.decode(ids[:-1])
    assert read + segmenter.upcoming.text == "Hello wonderful world"
    segmenter.begin()
    segmenter.end(len(segmenter.upcoming.ids) if segmenter.coming else 99)
    assert segmenter.exhausted


def test_half_a_character_is_read_again(tokenizer: Any) -> None:
    text = "ab 😀 cd"
    segmenter = TextSegmenter(tokenizer, 400)
    segmenter.add(text)
    segmenter.finish()
    for fed_ids in range(len(text_ids(tokenizer, text))):
        rest = segmenter.upcoming.rest(fed_ids)
        assert text.endswith(rest.text.strip())
        assert "\ufffd" not in rest.text


def test_unread_punctuation_is_dropped_and_text_still_to_come_is_not(tokenizer: Any) -> None:
    segmenter = TextSegmenter(tokenizer, 400)
    segmenter.add("Hello there ...")
    segmenter.finish()
    segmenter.begin()
    segmenter.end(len(text_ids(tokenizer, "Hello there")))
    assert segmenter.exhausted

    segmenter = TextSegmenter(tokenizer, 400)
    segmenter.feed("Hello there now ")
    segmenter.begin()
    segmenter.end(99)
    assert not segmenter.exhausted
    assert not segmenter.can_begin
    segmenter.feed(" and more")
    segmenter.finish()
    assert segmenter.upcoming.text == "and more"


def test_early_ends_do_not_move_the_next_cut(tokenizer: Any) -> None:
    """The same text, with the same number of ids read, leaves the same segments whether it had all arrived or not."""
    text = "One two three four. Five six seven eight. Nine ten."
    at_once, arriving = TextSegmenter(tokenizer, 30), TextSegmenter(tokenizer, 30)
    at_once.feed(text)
    at_once.finish()
    at_once.begin()
    at_once.end(3)
    for word in text.split(" ")[:3]:
        arriving.feed(word + " ")
    arriving.begin()
    arriving.end(3)
    arriving.feed(" ".join(text.split(" ")[3:]))
    arriving.finish()
    assert segments(arriving) == segments(at_once)


def test_nothing_speakable_is_exhausted_at_once(tokenizer: Any) -> None:
    assert fed(tokenizer, ["... ", "!?"], 5).exhausted
    assert fed(tokenizer, [], 5).exhausted
