"""Recordings at 24 kHz, held to what the official package makes of them, sample by sample."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from megatalker.checkpoint.official import load_qwen_tts, quiet, why_no_official
from megatalker.voices import read_reference
from megatalker.voices.reference_checks import examine_reference

pytestmark = pytest.mark.skipif(why_no_official() is not None, reason=str(why_no_official()))

Samples = NDArray[np.float32]

RATES = (
    *(4_000, 5_512, 6_000, 7_350, 8_000, 8_269, 9_600, 10_000, 11_000, 11_025, 11_127, 12_000, 13_230, 14_700, 15_000),
    *(16_000, 16_537, 17_640, 18_000, 18_900, 19_200, 20_000, 21_333, 22_000, 22_050, 22_051, 22_254, 23_999, 24_000),
    *(24_001, 25_000, 26_460, 28_000, 29_400, 30_000, 31_250, 32_000, 32_768, 33_075, 36_000, 37_800, 40_000, 44_056),
    *(44_099, 44_100, 44_101, 46_080, 47_250, 47_952, 48_000, 48_001, 48_048, 50_000, 50_400, 64_000, 88_200, 96_000),
    *(176_400, 192_000, 384_000),
)
"""Sixty, among them every rate that recorders and telephones have, and neighbours that share no factor with 24 kHz."""


def official(source: Any, rate: int | None = None) -> Samples:
    """Return what the official tokenizer encodes: ``[samples]`` at 24 kHz."""
    tokenizer = load_qwen_tts().Qwen3TTSTokenizer
    feature_extractor = SimpleNamespace(sampling_rate=24_000)
    without_weights = SimpleNamespace(
        feature_extractor=feature_extractor,
        load_audio=lambda *arguments, **keywords: tokenizer.load_audio(without_weights, *arguments, **keywords),
        _is_url=lambda _: False,
        _is_probably_base64=lambda _: False,
    )
    with quiet():  # audioread, which librosa reads files by, imports what a later Python leaves out
        (samples,) = tokenizer._normalize_audio_inputs(without_weights, [source], rate)
    return np.asarray(samples)


def sound(count: int) -> Samples:
    return np.random.default_rng(count).uniform(-0.9, 0.9, count).astype(np.float32)


def lengths(rate: int) -> list[int]:
    """Half a second and a few samples, 1.3 s, and whole periods of the two rates, where rounding decides."""
    period = rate // np.gcd(rate, 24_000)
    whole = rate // period * period
    return [rate // 2 + more for more in range(1, 5)] + [rate * 13 // 10, whole, whole + 1, whole + period - 1]


def test_there_are_sixty_rates() -> None:
    assert len(set(RATES)) == len(RATES) == 60


@pytest.mark.parametrize("rate", RATES)
def test_length_and_samples_are_the_official_ones_at_every_rate(rate: int) -> None:
    for length in lengths(rate):
        samples = sound(length)
        ours, theirs = read_reference((samples, rate)), official(samples, rate)
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs, err_msg=f"{length} samples")


@pytest.mark.parametrize(
    ("samples", "rate", "expected"),
    [(57_330, 44_100, 31_201), (22_197, 44_100, 12_081), (3_600_000, 60_000, 1_440_000)],
)
def test_lengths_that_differ_from_a_rounded_quotient(samples: int, rate: int, expected: int) -> None:
    recording = sound(samples)
    assert len(read_reference((recording, rate))) == expected
    np.testing.assert_array_equal(read_reference((recording, rate)), official(recording, rate))


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3"])
def test_files_and_uploads_give_the_official_samples(tmp_path: Any, channels: int, format: str) -> None:  # noqa: A002
    if format == "MP3" and channels > 2:
        pytest.skip("MP3 has two channels at most")
    path = tmp_path / f"voice.{format.lower()}"
    levels = np.linspace(1, 0.3, channels, dtype=np.float32)  # unlike, and far from cancelling each other
    soundfile.write(path, sound(45_003)[:, None] * levels, 44_100, format=format)
    expected = official(str(path))
    np.testing.assert_array_equal(read_reference(path), expected)
    np.testing.assert_array_equal(read_reference(path.read_bytes()), expected)
    np.testing.assert_array_equal(examine_reference(path.read_bytes(), None)[0], expected)
