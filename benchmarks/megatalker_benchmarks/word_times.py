"""Errors of the estimated word times, measured on the demo voice.

megatalker bench word-times --json benchmarks/results/cpu/word_times.json

The voice learned to speak from espeak-ng, which tells when each word of a text begins. Its speech of the same text,
stretched evenly to the length of the voice's, says when the voice speaks each word; the engine has to guess that from
text and audio alone. Text is that which the voice was not trained on; the pace is learned from one utterance to the
next, as in a session.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatalker import Checkpoint, Engine, SpeechStream
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.word_times import cut
from megatalker.serving.audio import to_pcm16
from megatalker_benchmarks.report import add_json_option, hand_out, whole
from megatalker_demo_voice.espeak import Espeak, EspeakFiles
from megatalker_demo_voice.speakers import SPEAKERS
from megatalker_demo_voice.speech import Clip, speak
from megatalker_demo_voice.text import TextSource

FEWEST_WORDS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--backend", default="compiled")
    parser.add_argument("--texts", type=whole(), default=60)
    parser.add_argument("--espeak", type=Path, help="folder made by examples/demo_voice/portable_espeak.sh")
    add_json_option(parser)
    options = parser.parse_args()
    errors, ratios = asyncio.run(measure(options))
    sizes = sorted(abs(error) for error in errors)
    report = {
        "texts": len(ratios),
        "words": len(errors),
        "mean_s": round(statistics.mean(errors), 3),
        "median_abs_s": round(statistics.median(sizes), 3),
        "p90_abs_s": round(sizes[int(len(sizes) * 0.9)], 3),
        "longest_abs_s": round(sizes[-1], 3),
        "duration_ratio_median": round(statistics.median(ratios), 3),
    }
    hand_out(report, options.json)


async def measure(options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the error of each word in seconds, and each text's duration relative to that of espeak-ng."""
    errors, ratios = [], []
    source = TextSource("word times")
    with tempfile.TemporaryDirectory() as scratch:
        espeak = Espeak(EspeakFiles.prepare(options.espeak, Path(scratch)))
        with Engine.open(checkpoint=Checkpoint.open(options.checkpoint), backend=options.backend) as engine:
            engine.warmup()
            while len(ratios) < options.texts:
                text, speaker = source.held_out_utterance(), len(ratios) % len(SPEAKERS)
                if len(cut(text)) < FEWEST_WORDS:
                    continue
                clip = speak(espeak, text, SPEAKERS[speaker])
                if clip is None:
                    continue
                stream = engine.speak(text, voice=SPEAKERS[speaker].name, seed=len(ratios), word_times=True)
                guessed, first, end = await estimates(stream)
                begin, true_end = sounding(clip.samples)
                ratio = (end - first) / (true_end - begin)
                ratios.append(ratio)
                truth = [(start - begin) * ratio + first for start in word_starts(clip)]
                if len(truth) == len(guessed):
                    errors += [guess - true for guess, true in zip(guessed, truth, strict=True)]
    return errors, ratios


async def estimates(stream: SpeechStream) -> tuple[list[float], float, float]:
    """Return when each word is estimated to begin, and where the first and the last sound are, in seconds."""
    words, parts = [], []
    async for chunk in stream:
        words += stream.take_words()
        parts.append(np.frombuffer(to_pcm16(chunk.pcm), "<i2"))
    words += stream.take_words()
    return [word.begins_s for word in words], *sounding(np.concatenate(parts))


def sounding(samples: NDArray[np.int16]) -> tuple[float, float]:
    """Return the seconds of the first and the last sample above -40 dB of full scale; start and end if none is."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > 328)
    begin, end = (loud[0], loud[-1]) if len(loud) else (0, len(samples))
    return float(begin) / SAMPLE_RATE, float(end) / SAMPLE_RATE


def word_starts(clip: Clip) -> list[float]:
    """Return when each word of the text begins, in seconds of the clip. A written word counts as one."""
    starts, begun = [], 0
    for piece in cut(clip.text):
        inside = [sample for sample, place in clip.words if begun <= place < piece.end]
        if inside:
            starts.append(inside[0] / SAMPLE_RATE)
        begun = piece.end
    return starts


if __name__ == "__main__":
    main()
