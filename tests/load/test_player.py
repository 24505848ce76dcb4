"""Measurements of an emulated listener."""

import numpy as np
import pytest

from megatalker.cli.bench.playback import Playback


def sound(seconds: float, level: float = 0.1) -> np.ndarray:
    return np.full(round(seconds * 24_000), level, np.float32)


def test_playback_begins_with_the_first_chunk_and_each_silence_is_noted() -> None:
    player = Playback(requested_at=10.0)
    player.take(sound(1.0), 10.5)
    player.take(sound(1.0), 11.0)  # in time
    assert (player.first_at, player.underruns) == (10.5, 0)
    player.take(sound(1.0), 13.0)  # dry since 12.5
    player.take(sound(1.0), 14.1)
    assert player.underruns == 2
    assert player.worst_gap_s == pytest.approx(0.5)
    assert player.audio_s == pytest.approx(4.0)


def test_the_first_sound_is_the_first_sample_above_silence_when_it_is_played() -> None:
    player = Playback(requested_at=0.0)
    player.take(sound(1.0, level=1e-4), 5.0)
    assert player.audible_at is None
    player.take(np.concatenate([sound(0.25, level=0.0), sound(0.5)]), 5.1)
    assert player.audible_at == pytest.approx(6.25), "after the second of silence before it"
    player.take(sound(1.0), 9.0)
    assert player.audible_at == pytest.approx(6.25)
