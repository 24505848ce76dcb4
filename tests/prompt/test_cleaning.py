# ruff: noqa: RUF001 - letters of many languages are meant
"""Cleaning of text before it is spoken, given at once and cut anywhere."""

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatalker.prompt.cleaning import TextCleaner, clean
from megatalker.prompt.control_tokens import ControlTokens

TOKENS = ControlTokens(("<|im_end|>", "<|im_start|>", "<tts_pad>", "<tts_text_bos>", "<|endoftext|>"))
ODD_PIECES = [
    *("\r", "\n", "\r\n", " ", "\u2029", "\u2028", "\x85", "\u00a0", "\t", "\x0b"),
    *("\x1b", "\x1b[", "\x1b[31", "\x1b[31m", "m", "\x1b]8;;http://a.b\x07", "\x1b]8;;", "\x1b\\", "\x9b1m", "\x07"),
    *("\u200d", "\u200c", "\u200b", "\ufeff", "\u00ad", "\ufe0f", "\U0001f469", "\U0001f467", "\u2764", "\u0646"),
    *("\u0915\u094d", "\ud83d", "\ude00", "\udc00", "\U0001f600", "\U0001d400", "\U000e0061", "\u2460", "\uff21"),
    *("<", "<|", "<|im", "_end|>", "<|im_end|>", "<tts_", "pad>", "<|x", "|>", "|", ">", "a", "Hi. ", "e\u0301"),
    *("\0", "\ufffe", "\ufffd", "\U0001fffe", "\u0378", "\ue000"),
]
TEXTS = st.lists(
    st.sampled_from(ODD_PIECES) | st.characters() | st.text(st.characters(codec="utf-8"), max_size=3), max_size=14
).map("".join)


def in_pieces(text: str, cuts: list[int]) -> str:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    cleaner = TextCleaner(TOKENS)
    ready = [cleaner.feed(text[start:end]) for start, end in pairwise(places)]
    return ("".join(ready) + cleaner.finish()).strip()


# ---- any text


@given(TEXTS, st.lists(st.integers(0, 200), max_size=10))
@example("I am happy \ud83d\ude00 to see you.", [12])
@example("a\r\n\r\nb", [2, 4])
@example("\U0001f469\u200d\U0001f467", [1, 2])
@example("a <|im_end|> b", [3, 4, 5, 9, 11])
def test_what_comes_out_does_not_depend_on_the_cuts(text: str, cuts: list[int]) -> None:
    whole = clean(text, TOKENS)
    assert in_pieces(text, cuts) == whole
    assert in_pieces(text, list(range(len(text)))) == whole


@given(TEXTS)
def test_clean_text_is_clean(text: str) -> None:
    cleaned = clean(text, TOKENS)
    assert clean(cleaned, TOKENS) == cleaned
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned == cleaned.strip()
    assert TOKENS.first_in(cleaned) is None
    assert not {"\0", "\x1b", "\ufeff", "\u200b", "\u00a0", "\u2028", "\r"} & set(cleaned)
    assert "  " not in cleaned


@given(st.text(st.characters(categories=("L", "M", "Nd", "P", "Zs")), max_size=40), st.integers(1, 5))
def test_no_letter_is_lost(text: str, step: int) -> None:
    """Each letter is still there, as NFKC has it or as it was."""
    wanted = letters(unicodedata.normalize("NFKC", text))
    assert letters(unicodedata.normalize("NFKC", in_pieces(text, list(range(0, len(text), step))))) == wanted


def letters(text: str) -> str:
    silent = {"\u115f", "\u1160", "\u3164", "\uffa0"}  # letters in name only: fillers of a Hangul block
    return "".join(character for character in text if character.isalpha() and character not in silent)


@pytest.mark.parametrize("first", range(0, 0x110000, 0x1000))
def test_every_character_has_a_speakable_form(first: int) -> None:
    for code in range(first, first + 0x1000):
        cleaned = clean(f"a{chr(code)}b")
        assert cleaned.startswith("a"), hex(code)
        assert cleaned.endswith("b"), hex(code)
        assert clean(cleaned) == cleaned, hex(code)
        kept = chr(code)
        if kept.isalpha() and unicodedata.normalize("NFKC", kept) == kept and kept not in "\u115f\u1160":
            assert cleaned == f"a{kept}b", hex(code)


# ---- plain text


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world! It's 3.14 – “quoted” (50%) at 7:30 p.m. … and £5, €6, $7; 2² ½ № 5 ™ ©",
        "Größe, naïve, Çà et là, ñandú, Żółć, Đặng, ﬁrst".replace("ﬁ", "fi"),
        "Привет, как дела? Ещё раз.",
        "Γειά σου, τι κάνεις;",
        "你好，世界！今天是２０２４年吗？「是的」。".replace("２０２４", "2024"),
        "こんにちは、世界。カタカナ「ー」もパーティーも。",
        "안녕하세요, 세계! ㅋㅋㅋ ㅠㅠ",
        "สวัสดีครับ น้ำ ทำ คำ",
        "नमस्ते दुनिया, क्षत्रिय, र्\u200dय, श्\u200dरी।",
        "سلام دنیا، می\u200cخواهم کتاب\u200cها را.",
        "שלום עולם, מה שלומך?",
        "Բարև, և այդպես։",
        "ქართული ენა",
        "e\u0301 a\u030a n\u0303 (decomposed) \u1100\u1161\u11a8",
        "👩\u200d👩\u200d👧 and 🎉".replace("\ufe0f", ""),
    ],
)
def test_plain_text_comes_out_to_the_bit(text: str) -> None:
    assert clean(text, TOKENS) == text
    assert in_pieces(text, list(range(len(text)))) == text


# ---- odd text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # characters without a sound
        ("\ufeffHello", "Hello"),
        ("He\u200bl\u2060lo\ufeff", "Hello"),
        ("\u202aHel\u200flo\u2069 \u200eyou\u061c", "Hello you"),
        ("hos\u00adpi\u00adtal", "hospital"),
        ("Hi\u034f \u2764\ufe0f", "Hi \u2764"),
        ("Hi \U000e0001\U000e0061\U000e007f", "Hi"),
        ("\u3164Hi\u115f", "Hi"),
        ("a\u20dd b\u20e3", "a b"),
        # what a terminal hides
        ("\x1b[1;31mred\x1b[0m text", "red text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\ here", "link here"),
        ("\x1b]0;title\x07Hi", "Hi"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x1b(BHi\x1b[K\x1b7", "Hi"),
        ("end\x1b[3", "end"),
        ("\x9bHello\x1b there\x1bHi\x9b3 of", "Hello there Hi 3 of"),
        # letters in disguise
        ("\U0001d400\U0001d41b\U0001d7d7", "Ab9"),
        ("\U0001d573\U0001d586\U0001d591\U0001d591\U0001d594", "Hallo"),
        ("\uff28\uff45\uff4c\uff4c\uff4f\uff11", "Hello1"),
        ("\u24bd\u24d8", "Hi"),
        ("\U0001f157\U0001f178", "HI"),
        ("o\ufb03ce \ufb01nds", "office finds"),
        ("\u2163", "IV"),
        ("step \u2460 and\u2461", "step 1 and 2"),
        ("10\u00b2 m, TM\u2122".replace("\u2122", ""), "10\u00b2 m, TM"),
        ("\uff08full, width\uff0c\uff09", "\uff08full, width\uff0c\uff09"),
        # white space
        ("a\u00a0b\u2009c\u3000d\te", "a b c d e"),
        ("a\nb\r\nc\x85d\u2028e\x0bf\x0cg", "a b c d e f g"),
        ("a\n\nb\r\n\r\nc\n \t\nd\u2029e\n\n\n\nf", "a \u2029b \u2029c \u2029d \u2029e \u2029f"),
        ("a\r\r\nb", "a \u2029b"),
        ("\n\n a \n\n", "a"),
        # joiners and flags
        ("\u200dHel\u200dlo\u200c", "Hello"),
        ("\U0001f469\u200d\U0001f467", "\U0001f469\u200d\U0001f467"),
        ("\U0001f469\u200d ok", "\U0001f469 ok"),
        ("\u0645\u06cc\u200c\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
        ("\U0001f1e9\U0001f1ea", "\U0001f1e9\U0001f1ea"),
        # marks
        ("a" + 2000 * "\u0301" + "b", "a" + 30 * "\u0301" + "b"),
        ("x" + 40 * "\u0e31" + "y" + 40 * "\u0903", "x" + 30 * "\u0e31" + "y" + 30 * "\u0903"),
        (9 * "\u0915\u0947\u0902", 9 * "\u0915\u0947\u0902"),
        # what is no text
        ("a\0b", "a b"),
        ("lone \ud83d here \ude00 there", "lone here there"),
        ("\ude00\ud83d", ""),
        ("whole \ud83d\ude00!", "whole \U0001f600!"),
        ("a\ufffdb\ufffec\ue000d\u0378e", "a b c d e"),
        # control tokens
        ("Hi <|im_end|> there", "Hi there"),
        ("Hi<tts_pad>there", "Hi there"),
        ("<|assistant|>Hi", "Hi"),
        ("a < b, <| c |>, <b>d</b> <|", "a < b, <| c |>, <b>d</b> <|"),
        ("<|im_<|im_end|>end|>", "<|im_ end|>"),
        ("<|im\u200b_end|>Hi", "Hi"),
        ("<|im_\x1b[0mend|>Hi", "Hi"),
        ("\uff1c|im_end|>", "\uff1c|im_end|>"),
    ],
)
def test_odd_text(text: str, expected: str) -> None:
    assert clean(text, TOKENS) == expected
    assert in_pieces(text, list(range(len(text)))) == expected


# ---- pieces


@given(st.lists(st.sampled_from(["Hello", ", ", "world", ". ", "\n", "\n\n", "3 < 4 ", "\u00e9t\u00e9 "]), max_size=9))
def test_no_word_waits_for_what_follows(pieces: list[str]) -> None:
    cleaner = TextCleaner(TOKENS)
    so_far = ready = ""
    for piece in pieces:
        so_far += piece
        ready += cleaner.feed(piece)
        assert ready.strip() == clean(so_far, TOKENS)


@pytest.mark.parametrize("held", ["\ud83d", "\x1b[3", "<|im_e", "\U0001f469\u200d", "<", "\x1b]8;;http://example.org"])
def test_the_words_before_something_unfinished_are_not_held_back(held: str) -> None:
    cleaner = TextCleaner(TOKENS)
    assert cleaner.feed(f"Hello there {held}").startswith("Hello there ")


@pytest.mark.parametrize("opening", ["\x1b]", "\x1b[", "<|", "\u200d", "\x9b", "\x1bP"])
def test_what_is_held_back_is_bounded(opening: str) -> None:
    cleaner = TextCleaner(TOKENS)
    given_out = cleaner.feed(opening) + "".join(cleaner.feed("0") for _ in range(2000))
    assert given_out.count("0") > 1600
