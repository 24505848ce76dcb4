"""Text that arrives in pieces: what is said is what the whole text would say, and waits no longer than it must."""

import random

import pytest

from megatalker.prompt.rewriting import Lexicon, TextRewriter
from megatalker.prompt.rewriting.grouping import MOST_HELD_CHARS
from megatalker.prompt.rewriting.lexicon import LONGEST_WORD
from megatalker.prompt.rewriting.normalisation import LANGUAGES, normaliser_of
from megatalker_benchmarks.rewriting import (
    LEXICON,
    random_pieces,
    random_rewriter,
    random_text,
    said_at_once,
    said_in_pieces,
)


@pytest.mark.parametrize("block", range(8))
def test_cuts_do_not_change_what_is_said(block):
    for seed in range(250 * block, 250 * (block + 1)):
        chance = random.Random(seed)
        text = random_text(chance)
        pieces, rewriter = random_pieces(chance, text), random_rewriter(chance)
        assert said_in_pieces(rewriter.copy(), pieces) == said_at_once(rewriter, text), (seed, text, pieces)


@pytest.mark.parametrize("language", [None, *LANGUAGES])
def test_one_character_at_a_time_says_the_same(language):
    rewriter = TextRewriter(LEXICON.tables(language), normaliser_of(language))
    for seed in range(60):
        text = random_text(random.Random(seed), 40)
        assert said_in_pieces(rewriter.copy(), list(text)) == said_at_once(rewriter.copy(), text)


@pytest.mark.parametrize(
    ("pieces", "right"),
    [
        (["I have 12", "5 dogs"], ["I have ", "one hundred and twenty-five "]),
        (["It is 5", " k", "m away"], ["It is ", "", "five kilometers "]),
        (["It is 5", " a", "pples"], ["It is ", "", "five "]),
        (["Hello", ",", " world"], ["", "Hello,", " "]),
        (["$5", " million", " more"], ["", "", "five million dollars "]),
        (["New", " Yor", "e"], ["", "", "New "]),
    ],
)
def test_text_waits_only_for_what_may_change_it(pieces, right):
    words = Lexicon({"New York": "Noo York"}).tables("english")
    rewriter = TextRewriter(words, normaliser_of("english"))
    assert [rewriter.feed(piece) for piece in pieces] == right


@pytest.mark.parametrize(
    "text",
    [
        "7" * 3000,
        "1 " * 3000,
        "x" * 3000,
        "1,2," * 1000,
        "5 km " * 1000,
        "www." + "a." * 2000,
        "(" * 3000,
        "New York " * 500,
        "New " * 900,
        "年5" * 2000,
        "5\u0301" * 2000,
        "March 3, " * 500,
    ],
)
@pytest.mark.parametrize("language", [None, "english", "chinese"])
def test_what_waits_is_bounded_whatever_is_written(text, language):
    rewriter, waiting = TextRewriter(LEXICON.tables(language), normaliser_of(language)), 0
    for character in text:
        waiting = 0 if rewriter.feed(character) else waiting + 1
        assert waiting <= MOST_HELD_CHARS + LONGEST_WORD


@pytest.mark.parametrize(
    "part", ["7", "1 ", "x", "5 km ", "New York ", "New ", "a.", "5年", "March 3, 2024 ", "1/", "("]
)
def test_work_is_linear_in_the_text(part):
    def characters_read(count: int) -> int:
        rewriter = TextRewriter(LEXICON.tables(None), normaliser_of(None))
        read = 0
        grouper = rewriter._grouper
        write = grouper._write

        def counted(group):
            nonlocal read
            read += len(group.text)
            return write(group)

        grouper._write = counted
        for character in part * count:
            rewriter.feed(character)
            read += len(rewriter._respeller._held) + len(grouper._atom)
        rewriter.finish()
        return read

    assert characters_read(2000) <= 2.2 * characters_read(1000) + 2 * MOST_HELD_CHARS


def test_a_copy_goes_its_own_way():
    rewriter = TextRewriter(LEXICON.tables("english"), normaliser_of("english"))
    assert rewriter.feed("It is 5 New") == "It is "
    copy = rewriter.copy()
    assert copy.feed(" York 7") == "five Noo York "
    assert rewriter.feed("er 8") == "five Newer "
    assert (copy.finish(), rewriter.finish()) == ("seven", "eight")


def test_a_copy_remembers_what_came_before() -> None:
    rewriter = TextRewriter((), normaliser_of(None))
    rewriter.feed("犬がいます。")
    assert rewriter.copy().whole("5 km") == "五キロメートル"
    german = TextRewriter((), normaliser_of("german"))
    german.feed("Es war am ")
    assert german.copy().whole("3. Mai") == "dritten Mai"
