from itertools import islice

import pytest

from megatalker.checkpoint.template import role_ids
from megatalker.checkpoint.tokenizer import load_tokenizer
from megatalker.prompt.text import check_text
from megatalker_conformance import intelligibility
from megatalker_demo_voice.splits import is_held_out
from megatalker_demo_voice.text import MAX_CHARS, TextSource
from megatalker_demo_voice.tokens import encode_texts, write_tokenizer
from megatalker_demo_voice.vocabulary import plural, vocabulary, with_article


def some(seed: str, count: int) -> list[str]:
    source = TextSource(seed)
    return [source.utterance() for _ in range(count)]


def test_a_seed_gives_the_same_text_again() -> None:
    assert some("a", 200) == some("a", 200)
    assert some("a", 200) != some("b", 200)


def test_text_is_varied_and_fit_to_be_spoken() -> None:
    texts = some("variety", 3000)
    assert len(set(texts)) > 2500
    assert all(check_text(text, MAX_CHARS) == text for text in texts)
    assert not any("{" in text or "  " in text for text in texts)


def test_two_percent_are_held_out_whatever_their_case_and_punctuation() -> None:
    held_out = [text for text in some("split", 20_000) if is_held_out(text)]
    assert 0.01 < len(held_out) / 20_000 < 0.03
    assert all(is_held_out(text.upper().replace(",", "") + "!") for text in held_out)
    assert not any(is_held_out(word) for word in vocabulary().words)


def test_the_words_of_the_intelligibility_check_are_known_and_its_texts_are_not() -> None:
    assert tuple(intelligibility.WORDS) == vocabulary().commands
    texts = (*intelligibility.DIGIT_STRINGS, *intelligibility.WORD_ROWS, *intelligibility.SENTENCES)
    assert [text for text in texts if not is_held_out(text)] == []
    known = {word.lower() for text in some("known", 20_000) for word in intelligibility.plain_words(text)}
    assert {word for text in texts for word in intelligibility.plain_words(text)} <= known


@pytest.mark.parametrize(
    ("noun", "expected"), [("city", "cities"), ("toy", "toys"), ("fox", "foxes"), ("wolf", "wolves"), ("cat", "cats")]
)
def test_plurals(noun: str, expected: str) -> None:
    assert plural(noun) == expected


@pytest.mark.parametrize(
    ("phrase", "expected"), [("hour", "an hour"), ("uniform", "a uniform"), ("apple", "an apple"), ("boat", "a boat")]
)
def test_articles(phrase: str, expected: str) -> None:
    assert with_article(phrase) == expected


def test_the_tokenizer_keeps_role_words_whole_and_text_ahead_of_speech(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    tokenizer = load_tokenizer(folder)
    assert [tokenizer.id_to_token(token) for token in role_ids(tokenizer)] == ["<|im_start|>", "assistant", "Ċ"]
    texts = list(islice(some("tokens", 500), 500))
    ids = encode_texts(tokenizer, texts)
    assert [tokenizer.decode(row) for row in ids] == texts
    words = sum(len(text.split()) for text in texts)
    assert sum(map(len, ids)) / words < 2.5, "one token is fed each frame, and a word lasts about four"
