"""Requirements of a good recording, and the messages about a bad one."""

import numpy as np
import pytest

from megatalker.errors import InvalidRequestError
from megatalker.voices.reference_checks import read_good_reference
from voice_recordings import WORDS, Samples, speech, wav


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * 24_000), np.float32)


def clipped() -> Samples:
    return np.clip(4 * speech(), -1, 1)


def named(value: object) -> str | None:
    """Recordings differ from process to process, by the time that some formats note down; their names must not."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else None


@pytest.mark.parametrize(
    ("content", "transcript", "complaint"),
    [
        (wav(speech(31)), WORDS * 9, r"lasts 31.00 s, expected at most 30 s; cut it"),
        (wav(speech(0.6)), WORDS, r"holds 0\.\d s of speech in 0\.6 s, expected at least 1 s"),
        (wav(np.concatenate([speech(1), silence(8), speech(1)])), WORDS, r"in 10.0 s, expected at least 1 s and 30%"),
        (wav(speech(rate=8_000), 8_000), WORDS, "sampled at 8000 Hz, expected at least 16000"),
        (wav(clipped()), WORDS, r"clipped \(\d+\.\d% of its samples .*; record it at a lower level"),
        (wav(clipped() * 0.5, subtype="FLOAT"), WORDS, "is clipped"),
        (wav(silence(3)), WORDS, "is silent"),
        (b"RIFF", WORDS, "is not audio"),
        (wav(speech()), "", "the transcript is '', expected every word"),
        (wav(speech()), "?!", "the transcript is '"),
        (wav(speech()), "Yes.", r"has 3 letters for \d.\d s of speech, 1.\d a second, expected 3 to 40"),
        (wav(speech()), WORDS * 9, "a second, expected 3 to 40"),
    ],
    ids=named,
)
def test_a_recording_that_makes_no_good_voice_is_refused(content: bytes, transcript: str, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        read_good_reference(content, transcript, 30.0)


@pytest.mark.parametrize(
    ("content", "transcript"),
    [
        (wav(speech()), WORDS),
        (wav(speech()), None),
        (wav(speech()), "今天天气很好我们去公园"),
        (wav(speech(29)), WORDS * 6),
        (wav(speech() * np.float32(2.4 / 0.4), subtype="FLOAT"), WORDS),
        (wav(speech(pitch=60, rate=48_000) * np.float32(0.99 / 0.4), 48_000), WORDS),
        (wav(np.repeat(speech()[:, None], 2, 1)), WORDS),
    ],
    ids=named,
)
def test_good_recordings_pass_loud_and_low_ones_too(content: bytes, transcript: str | None) -> None:
    samples = read_good_reference(content, transcript, 30.0)
    assert samples.dtype == np.float32
    assert samples.ndim == 1
