"""Judges' figures on public recordings whose words and speakers are known: ``python quality_references.py RESULT``.

The recordings are pocketsphinx's own test data (Debian's package ``pocketsphinx-testdata``): five sentences of a novel
by one reader, and five names of playing cards by another speaker.
"""

import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megatalker.cli.bench.report import environment
from megatalker.plugins.judges import Hearing, JudgeContext, SpeechJudge
from megatalker.voices import read_reference
from megatalker_conformance.quality import plugin
from megatalker_conformance.quality.normaliser import BenchmarkNormaliser
from megatalker_conformance.quality.sides import Pcm
from megatalker_conformance.quality.sound import measure_sound
from megatalker_conformance.recogniser import word_errors

FOLDER = Path("/usr/share/pocketsphinx/test/data")
SPEAKERS = {"librivox": "librivox/transcription", "cards": "cards/cards.transcription"}
"""Folders, of one speaker each, and what is said there."""


@dataclass(frozen=True)
class KnownRecording:
    """One recording of a known speaker."""

    speaker: str
    text: str
    pcm: Pcm


@cache
def recordings() -> Sequence[KnownRecording]:
    """All ten recordings, at 24 kHz."""
    return list(_recordings())


def _recordings() -> Iterator[KnownRecording]:
    for speaker, transcription in SPEAKERS.items():
        for line in (FOLDER / transcription).read_text().splitlines():
            said = re.fullmatch(r"<s> (.*?)\s*</s> \((\S+)\)", line.strip())
            assert said is not None, line
            yield KnownRecording(speaker, said[1], read_reference(FOLDER / speaker / f"{said[2]}.wav"))


def loaded(name: str) -> tuple[str, Hearing]:
    """Return the version of a judge, and the judge, who knows the words of all recordings."""
    (judge,) = (judge for judge in plugin.megatalker_judges() if judge.name == name)
    assert isinstance(judge, SpeechJudge)
    words = BenchmarkNormaliser("english")
    vocabulary = frozenset(word for known in recordings() for word in words(known.text))
    context = JudgeContext("english", torch.device("cpu"), vocabulary)
    return judge.version(context), judge.load(context)


def recognised() -> dict[str, Any]:
    """Word errors of pocketsphinx in the recordings of each speaker, and in what the next recording says."""
    version, hear = loaded("pocketsphinx")
    words, heard = BenchmarkNormaliser("english"), [hear(known.pcm) for known in recordings()]
    told: dict[str, Any] = {"judge": version}
    for speaker in SPEAKERS:
        own = [place for place, known in enumerate(recordings()) if known.speaker == speaker]
        texts = [words(recordings()[place].text) for place in own]
        guesses = [words(heard[place]) for place in own]
        told[speaker] = {
            "words": sum(map(len, texts)),
            "errors": sum(map(word_errors, texts, guesses)),
            "errors against the next text": sum(map(word_errors, texts[1:] + texts[:1], guesses)),
        }
    return told


def compared() -> dict[str, Any]:
    """Similarities by resemblyzer, of recordings of one speaker and of different speakers."""
    version, embed = loaded("resemblyzer")
    vectors = [np.asarray(embed(known.pcm), float) for known in recordings()]
    units = [vector / np.linalg.norm(vector) for vector in vectors]
    pairs: dict[bool, list[float]] = {True: [], False: []}
    for one, other in itertools.combinations(range(len(units)), 2):
        same = recordings()[one].speaker == recordings()[other].speaker
        pairs[same].append(float(units[one] @ units[other]))
    ordered = [one > other for one in pairs[True] for other in pairs[False]]
    return {
        "judge": version,
        "same speaker": _spread(pairs[True]),
        "different speakers": _spread(pairs[False]),
        "share of comparisons in which the same speaker is more similar": statistics.mean(ordered),
    }


def sounds() -> dict[str, Any]:
    """Facts that need no judge, as they were recorded and with faults that were put there."""
    later = [np.concatenate([np.zeros(12_000, np.float32), known.pcm]) for known in recordings()]
    louder = [(20 * known.pcm).clip(-1, 1) for known in recordings()]
    facts = [measure_sound(known.pcm) for known in recordings()]
    return {
        "silence before speech, s": _spread([each.leading_s for each in facts]),
        "the same, half a second of silence put before": _spread([measure_sound(pcm).leading_s for pcm in later]),
        "clipped": sum(each.clipped for each in facts),
        "clipped, 20 times as loud": sum(measure_sound(pcm).clipped for pcm in louder),
        "silent": sum(each.silent for each in facts),
        "silent, a millionth as loud": sum(measure_sound(1e-6 * known.pcm).silent for known in recordings()),
    }


def rated() -> dict[str, Any]:
    """Predicted opinions by DNSMOS, of the recordings and with noise 10 dB below the speech."""
    version, rate = loaded("dnsmos")
    chance = np.random.default_rng(0)
    noisy = [
        known.pcm + 10**-0.5 * known.pcm.std() * chance.standard_normal(len(known.pcm)).astype(np.float32)
        for known in recordings()
    ]
    scores = [rate(known.pcm) for known in recordings()]
    return {"judge": version, "as recorded": _spread(scores), "with noise": _spread([rate(pcm) for pcm in noisy])}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"pieces": len(values), "least": min(values), "mean": statistics.mean(values), "most": max(values)}


if __name__ == "__main__":
    card = {
        "command": "python tests/helpers/quality_references.py RESULT",
        "recordings": "pocketsphinx-testdata of Debian: librivox and cards",
        "environment": environment(torch.device("cpu")),
        "words": recognised(),
        "similarity": compared(),
        "opinion": rated(),
        "sound": sounds(),
    }
    Path(sys.argv[1]).write_text(json.dumps(card, indent=1) + "\n")
