"""A stream that goes on in a slot that it gets back, or in another engine, has the same codes in 16 bits, too."""

from collections.abc import Iterator

import pytest

from engine_stage import TEXT, codes_of
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechOptions
from megatalker.engine.speech.outputs import Continuation
from megatalker.plugins import BackendRegistry
from megatalker.settings import Settings
from waiting import eventually

FRAMES = 24
SEEDS = range(3)
WORDS = TEXT.split(" ")


@pytest.fixture(scope="module")
def engine(tiny_custom_voice: Checkpoint) -> Iterator[Engine]:
    own = {"megakernel": {"interpret": True, "max_positions": 128}}
    settings = Settings(
        backend="megakernel", dtype="bfloat16", max_streams=1, short_speech="believe", device="cpu", backends=own
    )
    with Engine.open(settings, checkpoint=tiny_custom_voice, registry=BackendRegistry.installed()) as opened:
        yield opened


def test_a_lent_row_comes_back_with_the_same_codes(engine: Engine) -> None:
    for seed in SEEDS:
        alone = engine.speak(None, seed=seed, max_frames=FRAMES, return_codes=True)
        alone.feed(TEXT)
        alone.finish()
        expected = codes_of(alone)
        idle = engine.speak(None, seed=seed, max_frames=FRAMES, return_codes=True)
        for word in WORDS[:-1]:
            idle.feed(f"{word} ")
        eventually(lambda stream=idle: stream.facts().frames > 2, "it has begun")
        lent = engine.metrics().lent
        engine.speak("Hello.", max_frames=2).read_all()
        assert engine.metrics().lent == lent + 1
        idle.feed(WORDS[-1])
        idle.finish()
        assert codes_of(idle) == expected


def test_what_another_engine_began_goes_on_with_the_same_codes(engine: Engine) -> None:
    for seed in SEEDS:
        options = SpeechOptions(seed=seed, max_frames=FRAMES, return_codes=True)
        chunks = list(engine.speak(TEXT, options))
        expected = [tuple(frame) for chunk in chunks for frame in chunk.codes.tolist()]
        said = Continuation.after(chunks[: len(chunks) // 2])
        rest = codes_of(engine.speak_for("", TEXT, options, after=said))
        assert rest == expected[len(said.codes) :]
