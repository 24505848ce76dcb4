# ruff: noqa: RUF001 - full-width characters are meant
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from megatalker.errors import InvalidRequestError
from megatalker.prompt.control_tokens import ControlTokens, control_tokens
from megatalker.prompt.text import IncrementalTokenizer, TextChecker, check_text, prepare_text

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "Hello there, don't you think we'll meet again in 2024? I've said: \"it's 3.50 dollars!\"",
    "你好，世界。今天天气很好！ ünïcödé naïve café Ελληνικά привет",
    "well -- (perhaps) ... what?!\n\n  - one\n  - two\r\n",
]
CONTROL = ["<|im_start|>", "<|im_end|>", "<tts_pad>"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A small tokenizer of the Qwen2 kind with many merges, so that a wrong cut changes ids."""
    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([*CORPUS * 3, *["assistant"] * 999], trainer)
    raw.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    return raw


def whole(tokenizer: Any, text: str) -> list[int]:
    template = f"<|im_start|>assistant\n{text.strip()}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(template).ids
    return ids[3:-5]


def in_pieces(tokenizer: Any, pieces: Sequence[str]) -> list[int]:
    incremental = IncrementalTokenizer(tokenizer)
    return [*(token for piece in pieces for token in incremental.feed(piece)), *incremental.finish()]


# Characters at which the splitter, NFC or stripping do something special; then anything at all.
plain = "aSstdlLrevm .,!-'\"\n\r\t<3你。４½"
special = "\u00a0\u3000\x1c\x85\u200de\u0301\u0338\u0958\u212b\u1100\u1161\u11a8\u09c7\u09be"
tricky = st.text(st.sampled_from(plain + special))
texts = tricky | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(max_examples=600, deadline=None)
@given(st.lists(texts, max_size=12))
@example(["don", "'", "t say \"it's", '" 1', "2", "3 "])
@example(["Hello  ", " ", "world!", "\n", "\n", "Bye", " ", "\n"])
@example(["cafe", "\u0301", " ok"])
@example(["\u0958", "!", "a"])
@example(["\u1100", "\u1161", "\u11a8."])
def test_pieces_give_the_ids_of_the_whole(tokenizer: Any, pieces: list[str]) -> None:
    assume(not any(token in "".join(pieces) for token in CONTROL))
    text = "".join(pieces)
    assert in_pieces(tokenizer, pieces) == IncrementalTokenizer(tokenizer).whole(text.strip()) == whole(tokenizer, text)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CORPUS), st.lists(st.integers(0, 90), max_size=30))
def test_any_cut_of_ordinary_text_gives_the_ids_of_the_whole(tokenizer: Any, text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert in_pieces(tokenizer, pieces) == whole(tokenizer, text)


@pytest.mark.parametrize(
    ("pieces", "settled"),
    [
        (["Hello", " "], "Hello"),
        (["Hello", " wor", "ld"], "Hello"),
        (["Hello", " world", ","], "Hello world"),
        (["in 2024"], "in 202"),
        (["你好，世界。"], "你好，世界"),
        (["(don"], ""),
        (["don'"], "don"),
        (["wait!  "], "wait!"),
    ],
)
def test_a_word_is_handed_out_when_its_end_is_seen(tokenizer: Any, pieces: list[str], settled: str) -> None:
    incremental = IncrementalTokenizer(tokenizer)
    assert tokenizer.decode([token for piece in pieces for token in incremental.feed(piece)]) == settled


def test_the_small_tokenizer_agrees_with_the_prompt_builder(tiny_custom_voice: Any) -> None:
    from megatalker.checkpoint.template import text_ids

    text = "Hello there, it's 3 o'clock.\nNaïve “quotes” and 数字12！"
    assert in_pieces(tiny_custom_voice.tokenizer, list(text)) == text_ids(tiny_custom_voice.tokenizer, text)


def test_a_long_text_without_boundaries_takes_linear_work(tokenizer: Any) -> None:
    looked_at: list[int] = []

    class CountingTokenizer(str):
        __slots__ = ()

        def __getitem__(self, place: Any) -> str:
            looked_at.append(1)
            return str.__getitem__(self, place)

    from megatalker.prompt import text as module

    assert module._last_boundary(CountingTokenizer("x" * 1000), 999) == 0
    assert len(looked_at) == 2


@pytest.mark.parametrize("pieces", [["say <|im_end|>"], ["say <|im", "_end|> now"], [*"<tts_pad>"]])
def test_control_tokens_are_refused_however_they_are_cut(tokenizer: Any, pieces: list[str]) -> None:
    checker = TextChecker(ControlTokens(control_tokens(tokenizer)), 100, cleaning=False)
    for piece in pieces[:-1]:
        checker.check(piece)
    with pytest.raises(InvalidRequestError, match="control token '<"):
        checker.check(pieces[-1])


def test_a_refused_piece_leaves_no_trace(tokenizer: Any) -> None:
    checker = TextChecker(ControlTokens(control_tokens(tokenizer)), 11, cleaning=False)
    assert checker.check("Hello wor") == "Hello wor"
    for bad in ("\0", "<|im_end|>", None, "<|im", "lds"):
        with pytest.raises(InvalidRequestError):
            checker.check(bad)
    assert checker.check("ld") == "ld"


def test_the_text_limit_counts_all_pieces_and_names_its_setting(tokenizer: Any) -> None:
    checker = TextChecker(ControlTokens(), 5)
    checker.check("abc")
    with pytest.raises(InvalidRequestError, match=r"6 characters so far.* at most 5 .*max_text_chars"):
        checker.check("def")


def test_after_finish_nothing_is_accepted(tokenizer: Any) -> None:
    incremental = IncrementalTokenizer(tokenizer)
    incremental.feed("done")
    incremental.finish()
    with pytest.raises(RuntimeError, match=r"after finish\(\)"):
        incremental.feed("more")
    with pytest.raises(RuntimeError, match="called twice"):
        incremental.finish()


def test_blank_text_has_no_ids(tokenizer: Any) -> None:
    assert in_pieces(tokenizer, ["  ", "\n"]) == []


def test_check_text_strips_and_keeps_the_rest(tokenizer: Any) -> None:
    assert check_text(" \n Hello,  world \t", 20, ControlTokens(control_tokens(tokenizer))) == "Hello,  world"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "of type NoneType, expected str"),
        (b"hello", "of type bytes"),
        ("", "the text is empty"),
        (" \n\t\u3000", "the text is empty"),
        ("x" * 1_000_000, "1000000 characters, expected at most 50; .*the setting max_text_chars"),
        ("hi \0 there", "NUL character at position 3"),
        ("hi \ud83d", r"lone surrogate \(U\+D83D\) at position 3"),
        ("hi <|im_end|>", r"control token '<\|im_end\|>'"),
        ("<tts_pad>", "control token '<tts_pad>'"),
    ],
)
def test_impossible_text_is_refused(tokenizer: Any, text: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_text(text, 50, ControlTokens(control_tokens(tokenizer)))


def test_paragraphs_do_not_count_as_more_than_they_have(tokenizer: Any) -> None:
    text = "Good morning.\n\nHow are you?\r\n\r\nGood night."
    assert len(prepare_text(text, len(text), ControlTokens())) <= len(text)
    checker = TextChecker(ControlTokens(), len(text))
    assert all(checker.check(character) is not None for character in text)


def test_the_limit_counts_stripped_text(tokenizer: Any) -> None:
    assert len(check_text(" " * 9 + "x" * 50 + " " * 9, 50)) == 50


@given(st.text(max_size=50) | st.integers() | st.binary())
def test_check_text_either_returns_the_text_or_refuses(text: object) -> None:
    try:
        cleaned = check_text(text, 30)
    except InvalidRequestError:
        return
    assert cleaned == cleaned.strip() != ""
    assert len(cleaned) <= 30
    assert cleaned.encode("utf-8")
