"""How an utterance's text becomes passages, at once and bit by bit."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import text_ids
from megatalker.engine.script import Script

TEXT = "First one here. Second, with 3.14 in it! 第三句话。第四句。 Fifth (in “quotes.”) And a last one, no end"


@pytest.fixture(scope="session")
def tokenizer(tiny_custom_voice: Checkpoint) -> Any:
    return tiny_custom_voice.tokenizer


def passages(script: Script) -> list[tuple[str, list[int]]]:
    return [(passage.text.strip(), passage.ids) for passage in script.coming]


def fed(tokenizer: Any, pieces: list[str], max_chars: int) -> Script:
    script = Script(tokenizer, max_chars)
    for piece in pieces:
        script.feed(piece)
    script.finish()
    return script


def test_short_text_is_one_passage_with_the_official_ids(tokenizer: Any) -> None:
    whole = Script(tokenizer, 400)
    whole.add(TEXT)
    whole.finish()
    assert passages(whole) == [(TEXT, text_ids(tokenizer, TEXT))]
    assert passages(fed(tokenizer, [TEXT], 400)) == passages(whole)


def test_arriving_text_is_cut_at_the_first_sentence_end_after_the_limit(tokenizer: Any) -> None:
    assert [text for text, _ in passages(fed(tokenizer, [TEXT], 12))] == [
        "First one here.",
        "Second, with 3.14 in it!",
        "第三句话。第四句。 Fifth (in “quotes.”)",
        "And a last one, no end",
    ]


def test_without_sentence_ends_a_space_and_then_any_place_will_do(tokenizer: Any) -> None:
    assert [text for text, _ in passages(fed(tokenizer, ["one two three four five"], 5))] == [
        "one two three",
        "four five",
    ]
    assert [text for text, _ in passages(fed(tokenizer, ["a" * 20], 2))] == ["a" * 8, "a" * 8, "a" * 4]


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12), max_chars=st.integers(1, 40))
def test_how_arriving_text_is_split_into_pieces_does_not_matter(
    tokenizer: Any, cuts: list[int], max_chars: int
) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in pairwise(places)]
    assert passages(fed(tokenizer, pieces, max_chars)) == passages(fed(tokenizer, [TEXT], max_chars))


def test_a_passage_can_begin_while_its_text_arrives_once_enough_is_certain(tokenizer: Any) -> None:
    script = Script(tokenizer, 400, ids_needed=3)
    script.feed("Some")
    assert not script.can_begin, "the first word may still grow"
    script.feed(" words to speak now ")
    assert script.can_begin
    script.begin()
    assert not script.can_begin
    assert not script.exhausted


def test_what_the_decoder_did_not_read_is_spoken_next(tokenizer: Any) -> None:
    script = Script(tokenizer, 400)
    script.add("Hello wonderful world")
    script.finish()
    script.begin()
    ids = text_ids(tokenizer, "Hello wonderful world")
    script.end(len(ids) - 1)
    assert script.can_begin
    read = tokenizer.decode(ids[:-1])
    assert read + script.upcoming.text == "Hello wonderful world"
    script.begin()
    script.end(len(script.upcoming.ids) if script.coming else 99)
    assert script.exhausted


def test_half_a_character_is_read_again(tokenizer: Any) -> None:
    text = "ab 😀 cd"
    script = Script(tokenizer, 400)
    script.add(text)
    script.finish()
    for fed_ids in range(len(text_ids(tokenizer, text))):
        rest = script.upcoming.rest(fed_ids)
        assert text.endswith(rest.text.strip())
        assert "\ufffd" not in rest.text


def test_unread_punctuation_is_dropped_and_text_still_to_come_is_not(tokenizer: Any) -> None:
    script = Script(tokenizer, 400)
    script.add("Hello there ...")
    script.finish()
    script.begin()
    script.end(len(text_ids(tokenizer, "Hello there")))
    assert script.exhausted

    script = Script(tokenizer, 400)
    script.feed("Hello there now ")
    script.begin()
    script.end(99)
    assert not script.exhausted
    assert not script.can_begin
    script.feed(" and more")
    script.finish()
    assert script.upcoming.text == "and more"


def test_early_ends_do_not_move_the_next_cut(tokenizer: Any) -> None:
    """The same text, with the same number of ids read, leaves the same passages whether it had all arrived or not."""
    text = "One two three four. Five six seven eight. Nine ten."
    at_once, arriving = Script(tokenizer, 30), Script(tokenizer, 30)
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
    assert passages(arriving) == passages(at_once)


def test_nothing_speakable_is_exhausted_at_once(tokenizer: Any) -> None:
    assert fed(tokenizer, ["... ", "!?"], 5).exhausted
    assert fed(tokenizer, [], 5).exhausted
