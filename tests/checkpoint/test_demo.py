"""The voice that comes with the package: small, whole, and understood."""

import json
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from megatalker import Checkpoint, Engine
from megatalker.voices import list_speakers
from megatalker_conformance.intelligibility import DIGIT_STRINGS, Examiner, Pcm
from megatalker_demo_voice.pitch import VOICED, pitches
from megatalker_demo_voice.speakers import SPEAKERS, EspeakSpeaker
from megatalker_demo_voice.talker_export import voice_generation_config

NAMES = sorted(speaker.name for speaker in SPEAKERS)
LARGEST = 15_000_000


@pytest.fixture(scope="module")
def engine(demo: Checkpoint) -> Iterator[Engine]:
    with Engine.open(checkpoint=demo, backend="compiled", codec="streaming", device="cpu") as engine:
        yield engine


@pytest.fixture
def say(engine: Engine) -> Callable[[str, str], Pcm]:
    return cache(lambda speaker, text: engine.speak(text, voice=speaker, seed=3, max_frames=200).read_all())


def test_it_is_small_enough_to_come_along(demo: Checkpoint) -> None:
    files = [path for path in demo.folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= LARGEST
    assert demo.folder / "MODEL_CARD.md" in files


def test_its_speakers(demo: Checkpoint) -> None:
    assert demo.config.variant == "custom_voice"
    assert list_speakers(demo) == NAMES


def test_it_samples_as_the_recipe_says(demo: Checkpoint) -> None:
    assert json.loads((demo.folder / "generation_config.json").read_text()) == voice_generation_config()


@pytest.mark.slow
@pytest.mark.parametrize("speaker", NAMES)
def test_digits_are_understood_and_the_same_sound_in_disorder_is_not(
    say: Callable[[str, str], Pcm], speaker: str
) -> None:
    understood = Examiner(lambda text: say(speaker, text)).digits(DIGIT_STRINGS[:4])
    assert understood.share <= 0.15
    assert understood.control > 0.6


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.name)
def test_each_speaker_has_its_pitch(say: Callable[[str, str], Pcm], speaker: EspeakSpeaker) -> None:
    hertz, clear = pitches(torch.from_numpy(say(speaker.name, "Good morning, everyone.")))
    voiced = hertz[clear >= VOICED]
    assert len(voiced) > len(hertz) / 8, "it whispers"
    lowest, highest = speaker.hertz
    assert lowest <= float(voiced.median()) <= highest
