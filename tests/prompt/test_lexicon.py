"""Respellings of words: which are found, and what is wrong with a lexicon."""

import pytest

from megatalker.errors import InvalidRequestError
from megatalker.prompt.cleaning import clean
from megatalker.prompt.rewriting import Lexicon, TextRewriter
from megatalker.prompt.rewriting.lexicon import MOST_WORDS
from megatalker.prompt.rewriting.lexicon_files import LexiconFile, read_lexicon
from megatalker.prompt.rewriting.normalisation import normaliser_of


def said(text, words, language="english", *, normalise=False):
    lexicon = words if isinstance(words, Lexicon) else Lexicon(words)
    rewriter = TextRewriter(lexicon.tables(language), normaliser_of(language) if normalise else None)
    return rewriter.whole(clean(text))


@pytest.mark.parametrize(
    ("text", "words", "right"),
    [
        ("Sean met Sean.", {"Sean": "Shawn"}, "Shawn met Shawn."),
        ("Seance, McSean, Sean's", {"Sean": "Shawn"}, "Seance, McSean, Shawn's"),
        ("sean SEAN", {"Sean": "Shawn"}, "sean SEAN"),
        ("sql SQL Sql MySQL", {"sql": "sequel"}, "sequel sequel sequel MySQL"),
        ("SQL and sql", {"sql": "sequel", "SQL": "S Q L"}, "S Q L and sequel"),
        ("New York, New York City", {"New York": "N Y", "New York City": "N Y C"}, "N Y, N Y C"),
        ("New  York\nNew York", {"New York": "N Y"}, "N Y N Y"),
        ("New. York", {"New York": "N Y"}, "New. York"),
        ("C++, C and C+", {"C++": "see plus plus"}, "see plus plus, C and C+"),
        ("use .NET here", {".NET": "dot net"}, "use dot net here"),
        ("a.NET b", {".NET": "dot net"}, "adot net b"),
        ("naive naïve", {"naïve": "nigh eve"}, "naive nigh eve"),
        ("cafe\u0301 cafe", {"cafe": "kaff"}, "cafe\u0301 kaff"),
        ("我在北京大学", {"北京": "背景", "北京大学": "北大"}, "我在北大"),
        ("서울은 서울", {"서울": "소울"}, "소울은 소울"),
        ("東京でJR東日本", {"JR": "ジェイアール"}, "東京でジェイアール東日本"),
        ("aa aaa", {"a": "b", "aa": "c"}, "c aaa"),
        ("one two", {"one": "two", "two": "one"}, "two one"),
        ("İSTANBUL ΣΟΦΟΣ", {"istanbul": "x", "σοφος": "y"}, "x y"),
    ],
)
def test_whole_words_are_respelled(text, words, right):
    assert said(text, words) == right


def test_tables_hold_in_their_language_and_words_beside_them_in_all():
    lexicon = Lexicon({"Nguyen": "Win", "en": {"chat": "tchat"}, "french": {"chat": "sha"}})
    assert said("Nguyen chat", lexicon, "english") == "Win tchat"
    assert said("Nguyen chat", lexicon, "french") == "Win sha"
    assert said("Nguyen chat", lexicon, "german") == "Win chat"
    assert said("Nguyen chat", lexicon, None) == "Win tchat"
    assert lexicon.counts() == {"": 1, "english": 1, "french": 1}


def test_the_nearer_lexicon_goes_first_and_the_longer_word_before_it():
    request = Lexicon({"New York": "request", "x": "request"})
    voice = Lexicon({"New York": "voice", "New York City": "voice", "x": "voice", "y": "voice"})
    both = request.over(voice).over(Lexicon({"y": "setting", "z": "setting", "english": {"x": "setting"}}))
    assert said("New York, New York City, x y z", both) == "request, voice, request voice setting"
    assert Lexicon(both.merged()).tables("german")[0].find("z", "z", 0) == (1, "setting")
    assert (
        said("New York, New York City, x y z", Lexicon(both.merged()), "german")
        == "request, voice, request voice setting"
    )


def test_a_respelling_is_neither_looked_up_nor_normalised():
    words = {"version": "5 km", "km": "kay em"}
    assert said("version 5 km, km", words, normalise=True) == "5 km five kay em, kay em"
    assert said("SQL-92", {"SQL": "sequel"}, normalise=True) == "sequel ninety-two"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], r"lexicon is \['a'\], expected respellings by word"),
        ({"a": 5}, "lexicon, 'a': the respelling is 5, expected text"),
        ({"": "x"}, "'': the word has 0 characters, expected 1 to 64, a letter or digit among them"),
        ({"--": "x"}, "'--': the word has 2 characters, expected 1 to 64, a letter or digit among them"),
        ({"a" * 65: "x"}, "the word has 65 characters, expected 1 to 64"),
        ({"a": ""}, "'a': the respelling has 0 characters, expected 1 to 256, a letter or digit among them"),
        ({"a": "b" * 257}, "'a': the respelling has 257 characters"),
        ({"a b": "x", "a  b": "y"}, "'a  b': it is the same word as 'a b'; remove one of them"),
        (
            {"klingon": {"a": "b"}},
            "lexicon has a table 'klingon', expected one of chinese, english, .* or a code such as en",
        ),
        ({"en": {"a": 5}}, "lexicon, en, 'a': the respelling is 5, expected text"),
        ({f"w{number}": "x" for number in range(MOST_WORDS + 1)}, "lexicon has 50001 words, expected at most 50000"),
    ],
)
def test_what_is_wrong_with_a_lexicon_is_said(words, message):
    with pytest.raises(InvalidRequestError, match=message):
        Lexicon(words)


def test_a_file_is_read_and_read_again_when_it_changes(tmp_path, caplog):
    path = tmp_path / "words.toml"
    path.write_text('"Nguyen" = "Win"\n[english]\n"sql" = "sequel"\n', encoding="utf-8")
    file = LexiconFile(path)
    assert said("Nguyen, SQL", file.current()) == "Win, sequel"
    assert file.current() is file.current()
    path.write_text('"Nguyen" = "Wen"\n', encoding="utf-8")
    assert said("Nguyen, SQL", file.current()) == "Wen, SQL"
    path.write_text('"Nguyen" = \n', encoding="utf-8")
    assert said("Nguyen, SQL", file.current()) == "Wen, SQL"
    assert "is no TOML" in caplog.text
    assert "the lexicon stays as it was" in caplog.text
    path.unlink()
    assert said("Nguyen, SQL", file.current()) == "Wen, SQL"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"a" = "b"\n"a" = "c"\n', r"is no TOML: Cannot overwrite a value \(at line 2, column \d+\)"),
        (b"a b", r"is no TOML: .* \(at line 1, column 3\)"),
        (b'"a" = "\xff"', "byte 7 is not UTF-8; save it as UTF-8"),
        (b'[elvish]\n"a" = "b"', "has a table 'elvish', expected one of "),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, message):
    path = tmp_path / "words.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=message):
        read_lexicon(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidRequestError, match=r"lexicon '.*none.toml' does not exist"):
        read_lexicon(tmp_path / "none.toml")
    with pytest.raises(InvalidRequestError, match="cannot be read: "):
        read_lexicon(tmp_path)
