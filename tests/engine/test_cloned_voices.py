"""The codec of cloned voices: their reference frames are replayed once a voice, not once an utterance."""

import pytest
import torch

from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.codec_stage import WARM_VOICES
from megatalker.settings import Settings
from megatalker.voices import Voice

TEXT = "Hello there, this is a sentence of a few words."
REFERENCE_FRAMES = 5


def voice(checkpoint: Checkpoint, seed: int) -> Voice:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 64, (REFERENCE_FRAMES, checkpoint.config.num_code_groups), generator=generator)
    x_vector = torch.ones(checkpoint.config.talker.hidden_size)
    return Voice(x_vector=x_vector, reference_codes=codes, reference_text_ids=(5, 6, 7))


def codec_frames(fakes: Fakes, name: str = "noise") -> int:
    return sum(map(sum, fakes.loaded[name].calls))


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


def test_the_reference_is_replayed_for_the_first_utterance_only(fakes: Fakes, tiny_base: Checkpoint) -> None:
    with Engine.open(Settings(), checkpoint=tiny_base, registry=fakes.registry) as engine:
        one, other = voice(tiny_base, 0), voice(tiny_base, 1)
        first = engine.speak(TEXT, voice=one, seed=1).read_all()
        assert codec_frames(fakes) == REFERENCE_FRAMES + len(first) // 1920
        for again in (one, voice(tiny_base, 0)):  # the same recording, sent once more
            before = codec_frames(fakes)
            assert engine.speak(TEXT, voice=again, seed=1).read_all().tolist() == first.tolist()
            assert codec_frames(fakes) - before == len(first) // 1920
        assert engine.speak(TEXT, voice=other, seed=1).read_all().tolist() != first.tolist()
        assert engine.speak(TEXT, voice=one, seed=1).read_all().tolist() == first.tolist(), "no voice leaks"


def test_states_kept_for_voices_are_bounded(fakes: Fakes, tiny_base: Checkpoint) -> None:
    with Engine.open(Settings(max_frames=1), checkpoint=tiny_base, registry=fakes.registry) as engine:
        for seed in range(WARM_VOICES + 1):
            engine.speak(TEXT, voice=voice(tiny_base, seed), seed=1).read_all()
        before = codec_frames(fakes)
        engine.speak(TEXT, voice=voice(tiny_base, WARM_VOICES), seed=1).read_all()
        assert codec_frames(fakes) - before == 1, "the latest is kept"
        engine.speak(TEXT, voice=voice(tiny_base, 0), seed=1).read_all()
        assert codec_frames(fakes) - before == 2 + REFERENCE_FRAMES, "the oldest was dropped"


def test_another_codec_hears_the_reference_itself(tiny_base: Checkpoint) -> None:
    def fail(call: int) -> None:
        if call == 3:
            raise RuntimeError("device lost")

    undisturbed = Fakes()
    with Engine.open(Settings(), checkpoint=tiny_base, registry=undisturbed.registry) as engine:
        expected = engine.speak(TEXT, voice=voice(tiny_base, 0), seed=1).read_all()
    fakes = Fakes(codecs={"first": Behaviour(on_decode=fail), "second": Behaviour()})
    with Engine.open(Settings(), checkpoint=tiny_base, registry=fakes.registry) as engine:
        stream = engine.speak(TEXT, voice=voice(tiny_base, 0), seed=1)
        assert stream.read_all().tolist() == expected.tolist()
        assert len(stream.switches) == 1
