"""One seed, one file: neither chunk sizes, which follow the clock, nor other streams change a bit of the audio."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, scheduler
from megatalker.engine.speech.chunks import ChunkPolicy
from megatalker.settings import Settings

TEXT = "Hello there. How are you?"
FRAMES = 20


@pytest.fixture(scope="module", params=["tiny_custom_voice", "demo"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    checkpoint: Checkpoint = request.getfixturevalue(request.param)
    settings = {
        "device": "cpu",
        "backend": "compiled",
        "codec": "streaming",
        "backends": {"compiled": {"compile": "off"}},
        "max_frames": FRAMES,
        "runaway_guard": False,
    }
    with Engine.open(Settings.model_validate(settings), checkpoint=checkpoint) as engine:
        yield engine


def cut(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Make chunks of ``size`` frames after the first, whatever the playback clock says."""
    monkeypatch.setattr(scheduler, "AUDIO_MARGIN_S", -math.inf)
    monkeypatch.setattr(ChunkPolicy, "target", property(lambda policy: size, lambda policy, target: None))


def heard(engine: Engine, seed: int) -> tuple[list[int], bytes]:
    """The frames of each chunk, and all samples."""
    chunks = list(engine.speak(TEXT, seed=seed))
    return [chunk.frames for chunk in chunks], np.concatenate([chunk.pcm for chunk in chunks]).tobytes()


def test_chunk_sizes_change_no_bit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 1)
    sizes, expected = heard(engine, seed=7)
    assert set(sizes) == {1}
    assert len(sizes) > 8, "too short to be cut in several ways"
    for size in (3, 8):
        cut(monkeypatch, size)
        sizes, found = heard(engine, seed=7)
        assert sizes[:2] == [1, size]
        assert found == expected


@pytest.mark.slow
def test_other_streams_change_no_bit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 2)
    alone = [heard(engine, seed)[1] for seed in range(3)]
    streams = [engine.speak(TEXT, seed=seed) for seed in range(3)]
    assert [np.concatenate([chunk.pcm for chunk in stream]).tobytes() for stream in streams] == alone
