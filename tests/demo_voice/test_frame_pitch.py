"""Pitch on the grid of frames: a whole number of periods in each, and nothing else changed."""

import numpy as np
import pytest
from scipy.signal import lfilter

from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker_demo_voice.frame_pitch import Wave, move_to_frames

LOWEST_HZ, HIGHEST_HZ = 70, 135
FRAMES = 30
RESONANCE_HZ = 700


def glide(begin_hz: float, end_hz: float) -> Wave:
    """Pulses whose pitch glides, through one resonance."""
    hertz = np.linspace(begin_hz, end_hz, FRAMES * FRAME_SAMPLES)
    phase = np.cumsum(hertz) / SAMPLE_RATE
    pulses = np.diff(np.floor(phase), prepend=0.0)
    pole = 0.985 * np.exp(2j * np.pi * RESONANCE_HZ / SAMPLE_RATE)
    wave = lfilter([1.0], [1.0, -2 * pole.real, abs(pole) ** 2], pulses)
    return (0.3 * wave / np.abs(wave).max()).astype(np.float32)


def moved(wave: Wave) -> Wave:
    return move_to_frames(wave, SAMPLE_RATE, FRAME_SAMPLES, LOWEST_HZ, HIGHEST_HZ)


@pytest.mark.parametrize(("begin_hz", "end_hz"), [(85, 120), (130, 75), (106, 106)])
def test_each_frame_holds_whole_periods_of_the_nearest_pitch(begin_hz: float, end_hz: float) -> None:
    frames = moved(glide(begin_hz, end_hz)).reshape(FRAMES, FRAME_SAMPLES)[1:-1]
    spectra = np.abs(np.fft.rfft(frames * np.hanning(FRAME_SAMPLES)))  # one bin is 12.5 Hz: a period more in a frame
    middles = begin_hz + (end_hz - begin_hz) * (np.arange(1, FRAMES - 1) + 0.5) / FRAMES
    nearest = middles * FRAME_SAMPLES / SAMPLE_RATE
    for spectrum, wanted in zip(spectra, nearest, strict=True):
        multiples = {n: spectrum[n::n][:12].mean() for n in range(5, 12)}
        best = max(multiples, key=multiples.__getitem__)
        assert abs(best - wanted) < 0.6, (multiples, wanted)


def test_every_frame_begins_at_the_same_point_of_a_period() -> None:
    """Equal frames then sound alike, so the codec need not know the phase."""
    frames = moved(glide(100, 100)).reshape(FRAMES, FRAME_SAMPLES)[2:-2]
    assert np.corrcoef(frames).min() > 0.95
    assert np.corrcoef(glide(106, 106).reshape(FRAMES, FRAME_SAMPLES)[2:-2]).min() < 0.5
    frames = moved(glide(106, 106)).reshape(FRAMES, FRAME_SAMPLES)[2:-2]
    assert np.corrcoef(frames).min() > 0.95


def test_resonances_and_loudness_stay() -> None:
    wave = glide(94, 94)  # goes up to 100 Hz, six per cent
    before, after = (np.abs(np.fft.rfft(x)) ** 2 for x in (wave, moved(wave)))
    hertz = np.fft.rfftfreq(len(wave), 1 / SAMPLE_RATE)
    near = (hertz > 400) & (hertz < 1000)
    centres = [np.average(hertz[near], weights=power[near]) for power in (before, after)]
    assert centres[1] == pytest.approx(centres[0], rel=0.02)
    assert after.sum() == pytest.approx(before.sum(), rel=0.2)


def test_what_has_no_pitch_is_left_alone() -> None:
    noise = (0.1 * np.random.default_rng(0).standard_normal(20 * FRAME_SAMPLES)).astype(np.float32)
    np.testing.assert_array_equal(moved(noise), noise)
    silence = np.zeros(4 * FRAME_SAMPLES, np.float32)
    np.testing.assert_array_equal(moved(silence), silence)
