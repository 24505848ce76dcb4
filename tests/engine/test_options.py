"""Options of speech: given whole, one by one, checked without speaking."""

from dataclasses import fields

import pytest

from fake_backend import Behaviour, Fakes
from megatalker import Engine, SamplingParams, SpeechOptions
from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.settings import Settings

TEXT = "Hello there, this is a sentence of a few words."


@pytest.fixture
def engine(tiny_custom_voice: Checkpoint) -> Engine:
    with Engine.open(Settings(), checkpoint=tiny_custom_voice, registry=Fakes().registry) as engine:
        yield engine


def test_options_whole_and_one_by_one_mean_the_same(engine: Engine) -> None:
    whole = engine.speak(TEXT, SpeechOptions(seed=3, language="english", max_frames=4)).read_all()
    mixed = engine.speak(TEXT, SpeechOptions(seed=9, language="english"), seed=3, max_frames=4).read_all()
    single = engine.speak(TEXT, seed=3, language="english", max_frames=4).read_all()
    assert whole.tolist() == mixed.tolist() == single.tolist()
    assert len(whole) == 4 * 1920


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sead": 3}, r"no option 'sead' of speech; did you mean 'seed'\?"),
        ({"tempo": 3}, r"no option 'tempo' of speech; known options: voice, language"),
        ({"options": {"seed": 3}}, r"options is \{'seed': 3\}, expected SpeechOptions"),
        ({"sampling": {"top_k": 3}}, r"sampling is \{'top_k': 3\}, expected SamplingParams"),
        ({"language": "klingon"}, "unknown language 'klingon'"),
        ({"language": 3}, "language is 3, expected text"),
        ({"voice": 3}, "voice is 3, expected"),
        ({"max_frames": True}, "max_frames is True"),
        ({"max_ahead_s": float("nan")}, "max_ahead_s is nan"),
        ({"max_ahead_s": 1e308}, "max_ahead_s is 1e.308, expected a number of seconds above 0, at most 1000000"),
        ({"max_ahead_s": "long"}, "max_ahead_s is 'long'"),
        ({"seed": -1}, "seed"),
        ({"layout": "sideways"}, "layout is 'sideways'"),
        ({"instruct": "<|im_end|>"}, "instruct: the text contains the control token"),
    ],
)
def test_impossible_options_are_refused_by_name_and_by_check_alike(
    engine: Engine, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        engine.speak(TEXT, **arguments)
    with pytest.raises(InvalidRequestError, match=message):
        engine.check(**arguments)


def test_check_speaks_nothing_and_takes_no_place(tiny_custom_voice: Checkpoint) -> None:
    fakes = Fakes(talkers={"fake": Behaviour(frames=None)})
    settings = Settings(max_streams=1, max_waiting=0)
    with Engine.open(settings, checkpoint=tiny_custom_voice, registry=fakes.registry) as engine:
        stream = engine.speak(TEXT)
        next(stream)
        engine.check(SpeechOptions(language="english"), seed=4)
        assert engine.metrics().streams == 1
        assert len(fakes.loaded["fake"].prefills) == 1


def test_every_option_has_a_default_that_leaves_the_choice_to_the_engine() -> None:
    assert {field.name: field.default for field in fields(SpeechOptions)} == {
        "voice": None,
        "language": None,
        "instruct": None,
        "normalize": None,
        "markup": None,
        "cast": None,
        "lexicon": None,
        "sampling": None,
        "seed": None,
        "layout": "auto",
        "max_frames": None,
        "max_ahead_s": None,
        "return_codes": False,
        "clean_text": True,
        "word_times": False,
    }
    assert SpeechOptions(sampling=SamplingParams(seed=5)).chosen_seed() == 5
    assert SpeechOptions(sampling=SamplingParams(seed=5), seed=6).chosen_seed() == 6
