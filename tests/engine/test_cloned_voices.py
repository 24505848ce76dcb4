"""The codec of cloned voices: their reference frames are replayed once a voice, not once an utterance."""

import threading
import time
from dataclasses import replace

import pytest
import torch

from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.codec_stage import LEAST_REPLAY_FRAMES, WARM_VOICES
from megatalker.errors import InvalidRequestError
from megatalker.settings import Settings
from megatalker.voices import Voice
from waiting import HANG_S

TEXT = "Hello there, this is a sentence of a few words."
REFERENCE_FRAMES = 5


def voice(checkpoint: Checkpoint, seed: int, frames: int = REFERENCE_FRAMES) -> Voice:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 64, (frames, checkpoint.config.num_code_groups), generator=generator)
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


LONG = 300
"""Frames of a long reference."""


def slow_codec(frame_s: float) -> Fakes:
    fakes = Fakes(talkers={"fake": Behaviour(frames=60)})
    fakes.codecs["noise"].on_decode = lambda call: time.sleep(frame_s * sum(fakes.loaded["noise"].calls[call]))
    return fakes


def test_others_go_on_while_a_long_reference_is_heard(tiny_base: Checkpoint) -> None:
    fakes, asked = slow_codec(0.002), threading.Event()

    def hold(call: int) -> None:
        assert call == 0 or asked.wait(HANG_S)

    fakes.talkers["fake"].on_decode = hold
    with Engine.open(Settings(max_chunk_frames=1), checkpoint=tiny_base, registry=fakes.registry) as engine:
        other = engine.speak(TEXT, voice=replace(voice(tiny_base, 1), reference_codes=None, reference_text_ids=None))
        next(other)
        cloned = engine.speak(TEXT, voice=voice(tiny_base, 0, LONG), max_frames=1)
        asked.set()
        cloned.read_all()
        assert len(other.read_all()) == 59 * 1920
        assert other.switches == ()
    codec = fakes.loaded["noise"]
    calls = [sum(call) for call in codec.calls]
    hears = next(states[0] for states, frames in zip(codec.states, calls, strict=True) if frames > 2)
    pieces = [index for index, states in enumerate(codec.states) if states[0] is hears]
    assert sum(calls[index] for index in pieces) == LONG
    assert len(pieces) >= 3
    assert pieces[-1] - pieces[0] >= len(pieces) + 1, "audio of the other is made between them"
    assert calls[pieces[0]] == LEAST_REPLAY_FRAMES


@pytest.mark.slow
def test_a_codec_that_is_slow_with_a_reference_is_not_retired(tiny_base: Checkpoint) -> None:
    fakes = slow_codec(0.005)
    with Engine.open(Settings(step_deadline_s=1.0), checkpoint=tiny_base, registry=fakes.registry) as engine:
        engine.warmup()  # from now on deadlines count; the whole reference would take 1.5 s
        assert engine.speak(TEXT, voice=voice(tiny_base, 0, LONG), max_frames=2).read_all().size == 2 * 1920
        assert engine.metrics().faulty == {}


def test_many_new_voices_at_once_are_all_heard(tiny_base: Checkpoint, fakes: Fakes) -> None:
    settings = Settings(max_streams=32, max_frames=2)
    with Engine.open(settings, checkpoint=tiny_base, registry=fakes.registry) as engine:
        count = WARM_VOICES + 4
        with engine.borrow_backends():
            streams = [engine.speak(TEXT, voice=voice(tiny_base, seed, 40)) for seed in range(count)]
        assert [stream.read_all().size for stream in streams] == [2 * 1920] * count


def test_a_reference_that_is_too_long_is_refused(tiny_base: Checkpoint, fakes: Fakes) -> None:
    with Engine.open(Settings(), checkpoint=tiny_base, registry=fakes.registry) as engine:
        with pytest.raises(InvalidRequestError, match=r"lasts 440\.0 s, expected at most 30 s; .*max_reference_s"):
            engine.speak(TEXT, voice=voice(tiny_base, 0, 5500))
        engine.check(voice=voice(tiny_base, 0, 375))
        wordy = replace(voice(tiny_base, 0), reference_text_ids=(5,) * 20_001)
        with pytest.raises(InvalidRequestError, match="reference has 20001 ids, expected at most 20000"):
            engine.speak(TEXT, voice=wordy)
