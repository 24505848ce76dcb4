"""Where speech begins and ends, in silence, noise and hum, and what is cut."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.voices import VoiceCloner
from megatalker.voices.reference_edges import KEPT_SILENCE_S, find_speech, trim_edges
from voice_recordings import WORDS, Samples, speech

CPU = torch.device("cpu")
RATE = 24_000
SECONDS = 4.0
KEPT = round(KEPT_SILENCE_S * RATE)
TOLERANCE = round(0.12 * RATE)
"""A soft beginning or end may count as silence."""


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.float32)


def between(before: float, after: float) -> Samples:
    """Speech between silences; its syllables begin and end softly."""
    return np.concatenate([silence(before), speech(SECONDS), silence(after)])


def noise(samples: Samples, decibels: float) -> Samples:
    level = find_speech(speech()).level * 10 ** (decibels / 20)
    return (np.random.default_rng(5).normal(size=len(samples)) * level).astype(np.float32)


def with_white_noise(samples: Samples) -> Samples:
    return samples + noise(samples, -30)


def with_loud_noise(samples: Samples) -> Samples:
    return samples + noise(samples, -14)


def with_rumble(samples: Samples) -> Samples:
    rumble = np.cumsum(np.random.default_rng(6).normal(size=len(samples)))
    rumble -= np.convolve(rumble, np.ones(2_400) / 2_400, "same")
    return (samples + 0.01 * rumble / rumble.std()).astype(np.float32)


def with_hum(samples: Samples) -> Samples:
    return (samples + 0.02 * np.sin(2 * np.pi * 50 * np.arange(len(samples)) / RATE)).astype(np.float32)


def with_offset(samples: Samples) -> Samples:
    return samples + np.float32(0.2)


def with_offset_while_recording(samples: Samples) -> Samples:
    changed = samples.copy()
    changed[12_000:-12_000] += 0.2
    return changed


def with_clicks(samples: Samples) -> Samples:
    """A key is pressed and released at both ends."""
    changed = samples.copy()
    for at in (1_000, 4_000, -4_000, -1_500):
        changed[at : at + 600] += 0.8 * np.random.default_rng(7).normal(size=600).astype(np.float32)
    return changed


def ended_by_digital_silence(samples: Samples) -> Samples:
    changed = with_white_noise(samples)
    changed[:2_400] = changed[-7_200:] = 0
    return changed


def quiet(samples: Samples) -> Samples:
    return samples * np.float32(0.005)


@pytest.mark.parametrize(("before", "after"), [(1.0, 3.0), (3.0, 1.0), (2.0, 5.0), (1.0, 40.0)])
@pytest.mark.parametrize(
    "change",
    [
        np.copy,
        quiet,
        with_white_noise,
        with_loud_noise,
        with_rumble,
        with_hum,
        with_offset,
        with_offset_while_recording,
        with_clicks,
        ended_by_digital_silence,
    ],
)
def test_silence_around_speech_is_cut_to_the_same_length(
    change: Callable[[Samples], Samples], before: float, after: float
) -> None:
    samples = change(between(before, after))
    span = find_speech(samples)
    tolerance = 3 * TOLERANCE if change is with_rumble else TOLERANCE  # it swells during the speech
    assert abs(span.start - before * RATE) <= tolerance
    assert abs(span.end - (before + SECONDS) * RATE) <= tolerance
    trimmed = trim_edges(samples)
    assert len(trimmed) <= SECONDS * RATE + 2 * (KEPT + tolerance)
    start = max(0, span.start - KEPT)
    np.testing.assert_array_equal(trimmed, samples[start : start + len(trimmed)], "what is left is unchanged")


@pytest.mark.parametrize("change", [np.copy, with_white_noise, with_hum, quiet])
def test_a_recording_without_silence_around_it_is_left_alone(change: Callable[[Samples], Samples]) -> None:
    samples = change(speech(SECONDS))
    assert len(samples) - len(trim_edges(samples)) <= TOLERANCE


def test_soft_speech_at_an_edge_is_speech() -> None:
    soft = speech(1.0) * np.float32(0.08)
    samples = np.concatenate([silence(2), soft, speech(2), soft, silence(2)])
    assert len(trim_edges(samples)) >= 4 * RATE


def test_a_short_word_after_a_pause_is_no_click() -> None:
    word = (0.2 * np.sin(2 * np.pi * 180 * np.arange(round(0.14 * RATE)) / RATE)).astype(np.float32)
    samples = np.concatenate([speech(2), silence(0.8), word, silence(2)])
    assert abs(find_speech(samples).end - 2.94 * RATE) <= 0.03 * RATE


def test_nothing_is_cut_where_nothing_stands_out() -> None:
    steady = noise(silence(3), -20)
    click = silence(3)
    click[30_000:30_100] = 0.5
    for samples in (silence(3), steady, click, silence(0.01), np.full(72_000, 0.5, np.float32)):
        assert len(trim_edges(samples)) == len(samples)


def test_a_silent_tail_does_not_change_the_voice(tiny_base: Checkpoint) -> None:
    spoken = speech(SECONDS)
    with VoiceCloner(tiny_base, CPU) as cloner:
        short, long = (
            cloner.clone(np.concatenate([spoken, silence(tail)]), reference_text=WORDS) for tail in (0.5, 6.0)
        )
        same = cloner.clone(trim_edges(between(0, 6)), reference_text=WORDS, trim=False)
        whole = cloner.clone(between(0, 6), reference_text=WORDS, trim=False)
    for other in (long, same):
        assert torch.equal(short.x_vector, other.x_vector)
        assert torch.equal(short.reference_codes, other.reference_codes)
    assert len(whole.reference_codes) == 125, "10 s, as the official package takes them"
    assert len(short.reference_codes) <= 54
