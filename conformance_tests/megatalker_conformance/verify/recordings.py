"""Recordings as users have them: rates, lengths, channels and formats; each made into a voice as officially."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
from numpy import float32
from numpy.typing import NDArray

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import quiet
from megatalker.cli.verify.card import Check, Outcome
from megatalker.voices import VoiceCloner, read_reference
from megatalker_conformance.verify.encoders import compare_voice

REFERENCE_TEXT = "This is what I said before."


@dataclass(frozen=True)
class RecordedFile:
    """A file with a made-up voice in it."""

    rate: int
    samples: int
    channels: int = 1
    subtype: str = "PCM_16"

    def __str__(self) -> str:
        sides = {1: "mono", 2: "stereo"}[self.channels]
        return f"{self.rate / 1000:g} kHz {sides} {self.subtype}, {self.samples} samples"

    def write(self, path: Path) -> Path:
        """Write syllables of a voice with breath between them; the channels differ."""
        time = np.arange(self.samples) / self.rate
        pitch = 120 + 15 * np.sin(2 * np.pi * 1.3 * time)
        phase = 2 * np.pi * np.cumsum(pitch) / self.rate
        voice = sum(np.sin(number * phase) / number for number in range(1, 9))
        loudness = np.clip(np.sin(2 * np.pi * 2.5 * time) + 0.6, 0, 1)
        breath = np.random.default_rng(self.samples).normal(size=(self.samples, self.channels)) * 2e-3
        level = np.array([0.25, 0.15])[: self.channels]
        soundfile.write(path, (loudness * voice)[:, None] * level + breath, self.rate, subtype=self.subtype)
        return path


RECORDINGS = (
    RecordedFile(44_100, 57_330),
    RecordedFile(44_100, 66_151, 2),
    RecordedFile(48_000, 70_001, 2, "PCM_24"),
    RecordedFile(22_050, 33_333),
    RecordedFile(16_000, 24_007, 1, "FLOAT"),
    RecordedFile(24_000, 33_601),
    RecordedFile(44_100, 485_113),
)
"""The last one lasts more than ten seconds."""


def made_up_recordings(checkpoint: Checkpoint, official: Any) -> Iterator[Check]:
    """Compare speaker embedding and codes of each file with those that the official package makes of it.

    Args:
        checkpoint: a ``base`` model.
        official: its official model.
    """
    with TemporaryDirectory() as folder, VoiceCloner(checkpoint) as cloner:
        for number, recorded in enumerate(RECORDINGS):
            path = recorded.write(Path(folder) / f"{number}.wav")
            samples = read_reference(path)
            with quiet():  # a made-up voice is a poor reference, and the log would say so
                voice = cloner.clone(samples, reference_text=REFERENCE_TEXT, trim=False)
                (item,) = official.create_voice_clone_prompt(str(path), REFERENCE_TEXT, x_vector_only_mode=False)
            compared, alike = compare_voice(voice, item.ref_spk_embedding, item.ref_code), _reads_alike(path, samples)
            found = str(compared) + (
                "" if alike else "; content and array of the file are read otherwise than the file"
            )
            outcome: Outcome = "passed" if compared.equal and alike else "failed"
            yield Check("cloning", f"recording of {recorded}", outcome, found)


def _reads_alike(path: Path, samples: NDArray[float32]) -> bool:
    """Whether the content of a file, and its samples as an array, are read as the file is."""
    audio, rate = soundfile.read(path, dtype="float32")
    return all(np.array_equal(samples, read_reference(source)) for source in (path.read_bytes(), (audio, rate)))
