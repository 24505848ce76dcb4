"""Numbers, dates, amounts, units, addresses and abbreviations in words, in ten languages."""

from pathlib import Path

import pytest

from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.prompt.cleaning import clean
from megatalker.prompt.languages import NAMES
from megatalker.prompt.rewriting import TextRewriter, normalisation
from megatalker.prompt.rewriting.normalisation import LANGUAGES, Normaliser, normaliser_of

CASES = {
    path.stem: [tuple(line.split("\t")) for line in path.read_text().splitlines()]
    for path in sorted((Path(__file__).parent / "cases").glob("*.tsv"))
}
"""Texts and what is said for them, by language; each was written and read by hand."""


def said(text: str, language: str | None) -> str:
    return TextRewriter((), normaliser_of(language)).whole(clean(text))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_is_written_out_as_it_is_read(language):
    wrong = [(text, said(text, language), right) for text, right in CASES[language] if said(text, language) != right]
    assert wrong == []


def test_there_are_cases_enough_for_each_language():
    assert CASES.keys() == LANGUAGES.keys() == set(NAMES.values())
    assert len(CASES["english"]) >= 300
    assert min(map(len, CASES.values())) >= 40
    for cases in CASES.values():
        assert len({text for text, _ in cases}) == len(cases)


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_in_words_stays_as_it_is_and_is_not_written_out_twice(language):
    for _, right in CASES[language]:
        if "@" not in right and not any(character.isdigit() for character in right):
            assert said(right, language) in (right, right.strip())


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("He has 5 km to go.", "He has five kilometers to go."),
        ("До него 5 км.", "До него пять километров."),
        ("我有2只狗。", "我有两只狗。"),
        ("犬が2匹います。", "犬が二匹います。"),
        ("5km走る。", "五公里走る。"),
        ("これは5kmです。", "これは五キロメートルです。"),
        ("책 3권이에요.", "책 세 권이에요."),
        ("5 Äpfel", "five Äpfel"),
        ("5", "five"),
    ],
)
def test_without_a_language_the_letters_around_a_number_tell_it(text, right):
    assert said(text, None) == right


def test_a_language_that_has_no_rules_is_refused():
    with pytest.raises(InvalidRequestError, match="text in klingon cannot be normalised, expected one of chinese, "):
        Normaliser("klingon")


def test_without_the_packages_the_error_says_how_to_install_them(monkeypatch):
    monkeypatch.setattr(normalisation, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"needs num2words and babel; .*pip install 'megatalker\[text\]'"):
        Normaliser("english")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("digits", [15, 16, 100, 5000])
def test_very_long_numbers_are_read_digit_by_digit(language, digits):
    words = said(f"{'7' * digits} km {'7' * digits},5 € 1/{'7' * digits} {'7' * digits}.{'7' * digits}", language)
    assert not any(character.isdigit() for character in words)
