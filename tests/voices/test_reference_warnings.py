"""Log messages about a recording that makes a poor voice: the texts with which a server refuses it."""

import logging

import numpy as np
import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.voices import clone_voice, read_reference
from megatalker.voices.reference_checks import read_good_reference, reference_warnings
from voice_recordings import WORDS, Samples, speech, wav

CPU = torch.device("cpu")
PAUSED = np.concatenate([speech(2.4), np.zeros(48_000, np.float32), speech(2.4)])


def noisy() -> Samples:
    return speech() + (0.06 * np.random.default_rng(2).normal(size=72_000)).astype(np.float32)


POOR: list[tuple[bytes, str | None, str, bool]] = [
    (wav(speech(rate=8_000), 8_000), WORDS, "sampled at 8000 Hz", True),
    (wav(np.clip(4 * speech(), -1, 1)), WORDS, "is clipped", True),
    (wav(speech()), "Yes.", "the transcript has 3 letters", True),
    (wav(speech()), WORDS * 9, "letters for", True),
    (wav(speech()), "?", "expected every word that is said in the recording", True),
    (wav(speech(0.8)), None, "expected at least 1 s", True),
    (wav(speech(2.0)), WORDS, "a voice is cloned better from 3 to 15 s", False),
    (wav(PAUSED), WORDS, "has a pause of 2.", False),
    (wav(speech() * np.float32(0.005), subtype="FLOAT"), WORDS, "is quiet", False),
    (wav(noisy()), WORDS, "is noisy", False),
]


@pytest.mark.parametrize(("content", "transcript", "expected", "severe"), POOR, ids=[row[2] for row in POOR])
def test_the_same_text_is_logged_in_python_and_refused_by_a_server(
    tiny_base: Checkpoint,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    transcript: str | None,
    expected: str,
    severe: bool,
) -> None:
    [warning] = [text for text in reference_warnings(content, transcript) if expected in text]
    with caplog.at_level(logging.WARNING, "megatalker"):
        clone_voice(tiny_base, read_reference(content), reference_text=transcript, device=CPU)
    assert caplog.messages.count(warning) == 1
    if severe:
        with pytest.raises(InvalidRequestError) as refusal:
            read_good_reference(content, transcript, 30.0)
        assert str(refusal.value) == warning
    else:
        read_good_reference(content, transcript, 30.0)


def test_a_good_recording_is_no_reason_to_warn(tiny_base: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    silent = np.zeros(96_000, np.float32)
    for samples in (speech(), np.concatenate([silent, speech(5.0), silent]), speech(29)):
        transcript = WORDS * max(1, len(samples) // 240_000)
        assert reference_warnings((samples, 24_000), transcript) == []
        clone_voice(tiny_base, read_reference((samples, 24_000)), reference_text=transcript, device=CPU)
    assert not caplog.messages
