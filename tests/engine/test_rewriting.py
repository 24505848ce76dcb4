"""Words of a lexicon and numbers in an engine's text: options, settings, limits, and that plain text is left alone."""

from pathlib import Path
from typing import Any

import pytest

from engine_stage import Opener, codes_of
from megatalker.checkpoint import Checkpoint
from megatalker.engine.engine import Engine
from megatalker.engine.speech.request import RequestChecker
from megatalker.errors import InvalidRequestError, SettingsError
from megatalker.prompt.rewriting import Lexicon
from megatalker.prompt.rewriting.factory import RewriterFactory
from megatalker.settings import Settings
from spoken_text import SpokenText

WRITTEN = "Sean ran 5 km on May 3."
SPOKEN = "Shawn ran five kilometers on May third."
OPTIONS: dict[str, Any] = {"normalize": "on", "lexicon": {"Sean": "Shawn"}, "language": "english", "max_frames": 12}
SEED = 7


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> SpokenText:
    return SpokenText(monkeypatch)


def speak_in_pieces(engine: Engine, text: str, **options: Any) -> list[tuple[int, ...]]:
    stream = engine.speak(None, seed=SEED, return_codes=True, **options)
    for character in text:
        stream.feed(character)
    stream.finish()
    return codes_of(stream)


def test_a_rewritten_text_has_the_codes_of_what_is_said(open_engine: Opener, spoken: SpokenText) -> None:
    engine = open_engine()
    rewritten = codes_of(engine.speak(WRITTEN, seed=SEED, return_codes=True, **OPTIONS))
    plain = codes_of(engine.speak(SPOKEN, seed=SEED, return_codes=True, language="english", max_frames=12))
    assert rewritten == plain != []
    assert speak_in_pieces(engine, WRITTEN, **OPTIONS) == speak_in_pieces(
        engine, SPOKEN, language="english", max_frames=12
    )
    assert spoken.take() == [SPOKEN] * 4


@pytest.mark.parametrize("wishes", [{}, {"normalize": "off"}, {"clean_text": False}])
def test_nothing_is_rewritten_unless_it_is_asked_for(
    wishes: dict[str, Any], spoken: SpokenText, open_engine: Opener
) -> None:
    engine = open_engine()
    assert codes_of(engine.speak(WRITTEN, seed=SEED, return_codes=True, max_frames=12, **wishes))
    assert speak_in_pieces(engine, WRITTEN, max_frames=12, **wishes)
    assert spoken.take() == [WRITTEN] * 2


def test_plain_settings_make_no_rewriter() -> None:
    factory = RewriterFactory(Settings())
    assert factory.make(None, None, None, cleaning=True) is None
    assert factory.make("english", "off", {}, cleaning=True) is None
    assert factory.make("english", "off", {"french": {"a": "b"}}, cleaning=True) is None
    assert factory.make("english", None, None, cleaning=False) is None


def test_word_times_tell_the_words_that_are_said(open_engine: Opener) -> None:
    stream = open_engine().speak(WRITTEN, seed=SEED, word_times=True, **OPTIONS | {"max_frames": 200})
    stream.read_all()
    said = "".join(word.before + word.text for word in stream.take_words())
    assert said
    assert SPOKEN.startswith(said)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"normalize": "yes"}, "normalize is 'yes', expected 'off' or 'on'"),
        ({"normalize": True}, "normalize is True, expected 'off' or 'on'"),
        ({"lexicon": ["Sean"]}, r"lexicon is \['Sean'\], expected respellings by word"),
        ({"lexicon": {"Sean": 1}}, "lexicon, 'Sean': the respelling is 1, expected text"),
        ({"normalize": "on", "clean_text": False}, "normalize changes the text, and clean_text=False gives the model"),
        (
            {"lexicon": {"a": "b"}, "clean_text": False},
            "lexicon changes the text, and clean_text=False gives the model",
        ),
    ],
)
@pytest.mark.parametrize("text", [WRITTEN, None])
def test_impossible_wishes_are_refused(
    tiny_custom_voice: Checkpoint, open_engine: Opener, wishes: dict[str, Any], message: str, text: str | None
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        open_engine().speak(text, **wishes)


def test_the_text_in_words_has_the_limit_of_any_text(open_engine: Opener) -> None:
    engine = open_engine(max_text_chars=40)
    with pytest.raises(InvalidRequestError, match="the text, written out, has 93 characters, expected at most 40"):
        engine.speak("7777 7777", normalize="on", language="english")
    stream = engine.speak(None, normalize="on", language="english", max_frames=12)
    stream.feed("It is 7 now, ")
    with pytest.raises(InvalidRequestError, match="expected at most 40 in one stream"):
        stream.feed("7777 7777 and ")
    stream.feed("8 ")
    stream.finish()
    assert stream.read_all().size


def test_a_refused_piece_leaves_no_trace(open_engine: Opener, spoken: SpokenText) -> None:
    stream = open_engine(max_text_chars=40).speak(None, normalize="on", language="english", max_frames=30)
    stream.feed("It is 1")
    with pytest.raises(InvalidRequestError, match="expected at most 40"):
        stream.feed("7777 7777 and ")
    stream.feed("2 now")
    stream.finish()
    stream.read_all()
    assert spoken.take() == ["It is twelve now"]


def test_a_lexicon_that_cannot_be_read_is_refused_at_the_start(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"lexicon: lexicon '.*none\.toml' does not exist"):
        RequestChecker(Settings(lexicon=tmp_path / "none.toml"), tiny_custom_voice)


def test_the_setting_takes_truth_values() -> None:
    assert [Settings(normalize=value).normalize for value in (True, "true", "on", False, "off")] == [
        "on",
        "on",
        "on",
        "off",
        "off",
    ]
    with pytest.raises(ValueError, match="normalize"):
        Settings(normalize="maybe")


def test_a_lexicon_object_may_be_given(open_engine: Opener, spoken: SpokenText) -> None:
    open_engine().speak("Sean", lexicon=Lexicon({"Sean": "Shawn"}), max_frames=8).read_all()
    assert spoken.take() == ["Shawn"]
