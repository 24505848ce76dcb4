"""Errors of word times, measured on the demo voice: estimates, and those of an aligner of the same speech.

megatalker bench word-times --aligner pocketsphinx --texts 300 --json benchmarks/results/cpu/word_times.json

The voice learned to speak from espeak-ng, which tells when each word of a text begins. Its speech of the same text by
the same speaker is laid over the voice's by dynamic time warping of cepstra, every 5 ms: that says when the voice
begins each word. How exact this truth is, is measured where the answer is known: between two speeds of espeak-ng. Text
is that which the voice was not trained on; the pace is learned from one utterance to the next, as in a session.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import librosa
import numpy as np
from numpy.typing import NDArray

from megatalker import Checkpoint, Engine
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.engine.speech.word_times import SpokenWord, cut
from megatalker.errors import MegatalkerError
from megatalker.plugins.aligner import ESTIMATE, Aligner, SpokenSegment, load_aligner
from megatalker_benchmarks.report import add_json_option, hand_out, whole
from megatalker_demo_voice.espeak import Espeak, EspeakError, EspeakFiles
from megatalker_demo_voice.speakers import SPEAKERS, EspeakSpeaker
from megatalker_demo_voice.speech import Clip, speak
from megatalker_demo_voice.text import TextSource

FEWEST_WORDS = 4
HOP = SAMPLE_RATE // 200
NOISE = 1e-3
"""-60 dB, so that digital silence has a cepstrum."""
QUICKER = 1.12
"""The speed at which espeak-ng speaks for the check of the truth: its phones become shorter, not all evenly."""

Samples = NDArray[np.float32]


@dataclass
class Errors:
    """Errors of a run, in seconds."""

    estimate: dict[str, list[float]] = field(default_factory=dict)
    """The error of each word's begin, by speaker."""
    aligned: dict[str, list[float]] = field(default_factory=dict)
    truth: list[float] = field(default_factory=list)
    texts: int = 0
    other_words: int = 0
    """Texts left out, since espeak-ng or a second segment divides them otherwise."""
    failed: int = 0
    """Texts that the aligner could not align: the estimates count for it."""
    aligner_s: float = 0.0
    """Processor time of the aligner's thread."""
    frames: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="compiled")
    parser.add_argument("--texts", type=whole(), default=60)
    parser.add_argument("--aligner", default=ESTIMATE, help="an installed plug-in, such as pocketsphinx")
    parser.add_argument("--espeak", type=Path, help="folder made by examples/demo_voice/portable_espeak.sh")
    add_json_option(parser)
    options = parser.parse_args()
    try:
        aligner = load_aligner(options.aligner)
        errors = measure(options, aligner)
    except (EspeakError, MegatalkerError) as error:
        raise SystemExit(f"word times cannot be measured: {error}") from error
    report: dict[str, Any] = {
        "truth": f"espeak-ng's word begins, carried over by dynamic time warping of cepstra every {HOP / 24:g} ms",
        "truth_error": summary(errors.truth),
        "texts": errors.texts,
        "texts_left_out": errors.other_words,
        ESTIMATE: by_speaker(errors.estimate),
    }
    if aligner is not None:
        report[options.aligner] = by_speaker(errors.aligned) | {
            "processor_ms_a_frame": round(1000 * errors.aligner_s / errors.frames, 3),
            "failed_texts": errors.failed,
        }
    hand_out(report, options.json)


def measure(options: argparse.Namespace, aligner: Aligner | None) -> Errors:
    """Speak the texts by all speakers in turn, and compare."""
    errors, source = Errors(), TextSource("word times")
    with tempfile.TemporaryDirectory() as scratch:
        espeak = Espeak(EspeakFiles.prepare(options.espeak, Path(scratch)))
        with Engine.open(checkpoint=Checkpoint.open(options.checkpoint), backend=options.backend) as engine:
            engine.warmup()
            while errors.texts < options.texts:
                text, speaker = source.held_out_utterance(), SPEAKERS[errors.texts % len(SPEAKERS)]
                if len(cut(text)) < FEWEST_WORDS:
                    continue
                clip, quicker = (
                    speak(espeak, text, speaker, rate=round(speaker.rate * factor)) for factor in (1, QUICKER)
                )
                if clip is None or quicker is None:
                    continue
                pcm, words, segments = spoken(engine, text, speaker, errors.texts)
                starts = word_starts(clip)
                if len(starts) != len(words) or segments > 1:
                    errors.other_words += 1
                    continue
                errors.texts += 1
                truth = carried(starts, clip.samples, pcm)
                errors.estimate.setdefault(speaker.name, []).extend([word.begins_s for word in words] - truth)
                if len(known := word_starts(quicker)) == len(starts):
                    errors.truth += list(carried(starts, clip.samples, quicker.samples) - known)
                if aligner is not None:
                    found = aligned(aligner, SpokenSegment(text, tuple(word.text for word in words), None, pcm), errors)
                    errors.aligned.setdefault(speaker.name, []).extend(
                        ([word.begins_s for word in words] if found is None else found) - truth
                    )
    return errors


def spoken(engine: Engine, text: str, speaker: EspeakSpeaker, seed: int) -> tuple[Samples, list[SpokenWord], int]:
    """Return the voice's speech, its words with estimates, and the number of segments."""
    stream, parts, words = engine.speak(text, voice=speaker.name, seed=seed, word_times=True), [], []
    for chunk in stream:
        words += stream.take_words()
        parts.append(chunk.pcm)
    return np.concatenate(parts), words + stream.take_words(), stream.facts().segments


def aligned(aligner: Aligner, segment: SpokenSegment, errors: Errors) -> list[float] | None:
    """Return the words' begins as the aligner finds them; ``None``: it fails."""
    began = time.thread_time()
    try:
        return [begin for begin, _ in aligner.align(segment)]
    except Exception:  # it may fail in any way, and the engine takes the estimates then
        errors.failed += 1
        return None
    finally:
        errors.aligner_s += time.thread_time() - began
        errors.frames += len(segment.samples) / FRAME_SAMPLES


def word_starts(clip: Clip) -> list[float]:
    """Return when each word of the text begins, in seconds of the clip. A written word counts as one."""
    starts, begun = [], 0
    for piece in cut(clip.text):
        inside = [sample for sample, place in clip.words if begun <= place < piece.end]
        if inside:
            starts.append(inside[0] / SAMPLE_RATE)
        begun = piece.end
    return starts


def carried(times: Sequence[float], origin: NDArray[Any], target: NDArray[Any]) -> NDArray[np.float64]:
    """Return where moments of one recording lie in another one of the same words, all in seconds."""
    _, path = librosa.sequence.dtw(cepstra(origin), cepstra(target), metric="euclidean")
    steps = np.arange(path[0, 0] + 1)
    begins, ends = (np.searchsorted(path[::-1, 0], steps, side) for side in ("left", "right"))
    middles = (path[::-1, 1][begins] + path[::-1, 1][ends - 1]) / 2
    carried_to: NDArray[np.float64] = np.interp(np.asarray(times) * SAMPLE_RATE / HOP, steps, middles)
    return carried_to * HOP / SAMPLE_RATE


def cepstra(samples: NDArray[Any]) -> Samples:
    """Cepstra of windows of 25 ms, every 5 ms, ``[20, steps]``, each of mean 0 and deviation 1."""
    sound = samples.astype(np.float32) / max(1e-3, float(np.abs(samples).max()))
    sound += NOISE * np.random.default_rng(0).standard_normal(len(sound)).astype(np.float32)
    found = librosa.feature.mfcc(y=sound, sr=SAMPLE_RATE, n_mfcc=20, n_fft=600, hop_length=HOP, n_mels=60)
    standard: Samples = (found - found.mean(1, keepdims=True)) / found.std(1, keepdims=True)
    return standard


def by_speaker(errors: dict[str, list[float]]) -> dict[str, Any]:
    """Summary of all speakers, and of each."""
    everyone = [error for one in errors.values() for error in one]
    return summary(everyone) | {name: summary(one) for name, one in errors.items()}


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Number, mean and sizes of errors, in milliseconds."""
    found, sizes = 1000 * np.asarray(errors), 1000 * np.abs(errors)
    return {
        "words": len(found),
        "mean_ms": round(float(found.mean()), 1),
        "median_abs_ms": round(float(np.median(sizes)), 1),
        "p90_abs_ms": round(float(np.percentile(sizes, 90)), 1),
        "p95_abs_ms": round(float(np.percentile(sizes, 95)), 1),
        "longest_abs_ms": round(float(sizes.max()), 1),
    }


if __name__ == "__main__":
    main()
