# ruff: noqa: RUF001 - full-width characters are meant
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatalker.errors import InvalidRequestError
from megatalker.prompt.sentences import split_sentences


def bare(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("text", "max_chars", "expected"),
    [
        ("Hello Dr. Smith. How are you?", 100, ["Hello Dr. Smith. How are you?"]),
        ("Hello Dr. Smith. How are you?", 20, ["Hello Dr. Smith.", "How are you?"]),
        ("I am, as ever, quite well today", 18, ["I am, as ever,", "quite well today"]),
        ("one two three four", 9, ["one two", "three", "four"]),
        ("a" * 25, 10, ["a" * 10, "a" * 10, "a" * 5]),
        ("你好。今天天气很好，我们去公园吧？", 8, ["你好。", "今天天气很好，", "我们去公园吧？"]),
        ("今日は。元気？はい", 7, ["今日は。元気？", "はい"]),
        ("e\u0301" * 4, 5, ["e\u0301" * 2, "e\u0301" * 2]),
        ("  \n ", 10, []),
    ],
)
def test_text_is_cut_where_a_speaker_pauses(text: str, max_chars: int, expected: list[str]) -> None:
    assert split_sentences(text, max_chars) == expected


words = st.text(st.sampled_from("ab .,!?;\n\t'é。，！…\u0301\u200d3"), max_size=120)


@settings(deadline=None)
@given(words | st.text(max_size=80), st.integers(1, 40))
def test_nothing_is_lost_and_no_segment_is_too_long(text: str, max_chars: int) -> None:
    segments = split_sentences(text, max_chars)
    assert bare("".join(segments)) == bare(text)
    assert all(0 < len(segment) <= max_chars and segment == segment.strip() for segment in segments)


def test_spaces_between_words_survive() -> None:
    text = "The quick brown fox, which jumped over everything in sight, slept. Then it woke; it ate."
    for max_chars in range(12, 100):
        assert " ".join(split_sentences(text, max_chars)) == text


def test_an_impossible_limit_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max_chars is 0, expected at least 1"):
        split_sentences("hello", 0)
