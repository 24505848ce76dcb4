"""Detection of a watermark after what happens to speech on its way, on three kinds of speech.

megatalker bench watermarks --json benchmarks/results/cpu/watermarks.json

Each utterance is made once by the engine, and looked at with the mark and without it. The kinds are the demo's voices;
voices cloned from them by ``demo-base``; and speech at other speeds and rates, changed after it was marked, as the
server does it. The ways are those that a file or a call takes.
"""

import argparse
import io
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from megatalker import Engine
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.cli.bench.drive import TEXTS
from megatalker.plugins.watermark import WatermarkModel, find_watermark, open_watermark
from megatalker.serving.detection import detect_in
from megatalker.serving.samples import SampleEncoder
from megatalker.serving.server.encoding import CompressingEncoder, Encoder, make_encoder
from megatalker.voices import clone_voice
from megatalker.voices.audio_file import decode_audio
from megatalker.voices.reference_audio import to_24_khz
from megatalker_benchmarks.report import add_json_option, hand_out, whole

Samples = NDArray[np.float32]

VOICES = ("robin", "otto", "mina")
CHANGES: tuple[tuple[float, int], ...] = ((0.8, 24_000), (1.25, 24_000), (1.5, 24_000), (1.0, 16_000), (1.0, 48_000))
"""Speeds and rates in Hz."""
CUT_S, SHORT_S = 5.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--watermark", default="perth")
    parser.add_argument("--utterances", type=whole(3), default=210, help="of all three kinds together")
    add_json_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plugin = find_watermark(options.watermark)
    hand_out(measure(open_watermark(plugin), plugin.threshold, options.utterances), options.json)


def measure(model: WatermarkModel, threshold: float, utterances: int) -> dict[str, Any]:
    """Return rates, confidences, signal-to-noise ratios and the cost of a frame."""
    each = utterances // 3
    marked: dict[str, dict[str, list[float]]] = {}
    plain: dict[str, dict[str, list[float]]] = {}
    ratios: list[float] = []
    frame_ms: list[float] = []
    seconds = 0.0
    for kind, speech, change in corpus(each):
        before = time.perf_counter()
        stream = model.open()
        parts = [stream.mark(frame) for frame in speech.reshape(-1, FRAME_SAMPLES)]
        result = np.concatenate([*parts, stream.finish()])
        frame_ms.append(1e3 * (time.perf_counter() - before) / (len(speech) // FRAME_SAMPLES))
        ratios.append(float(10 * np.log10(np.square(speech).sum() / np.square(result - speech).sum())))
        seconds += len(speech) / SAMPLE_RATE
        for samples, found in ((result, marked), (speech, plain)):
            for way, heard in ways(change(samples)):
                found.setdefault(kind, {}).setdefault(way, []).append(detect_in(model, heard))
    return {
        "utterances": len(ratios),
        "seconds": round(seconds, 1),
        "threshold": threshold,
        "snr_db": spread(ratios),
        "frame_ms": spread(frame_ms),
        "found": shares(marked, threshold),
        "false_alarms": shares(plain, threshold),
        "least_confidence_marked": extremes(marked, min),
        "most_confidence_unmarked": extremes(plain, max),
    }


def corpus(each: int) -> Iterator[tuple[str, Samples, Callable[[Samples], Samples]]]:
    """Yield the kind of speech, the speech as the engine made it, and what is done to it after it was marked."""
    references: list[Samples] = []
    with Engine.open(checkpoint="demo") as engine:
        for number in range(each):
            speech = engine.speak(text(number), voice=VOICES[number % 3], seed=number).read_all()
            if len(references) < len(VOICES):
                references.append(speech)
            yield "demo voices", speech, _unchanged
        for number in range(each, 2 * each):
            speed, rate = CHANGES[number % len(CHANGES)]
            speech = engine.speak(text(number), voice=VOICES[number % 3], seed=number).read_all()
            yield "other speeds and rates", speech, lambda samples, s=speed, r=rate: changed(samples, s, r)
    with Engine.open(checkpoint="demo-base") as engine:
        voices = [clone_voice(engine.checkpoint, speech) for speech in references]
        for number in range(2 * each, 3 * each):
            yield (
                "cloned",
                engine.speak(text(number), voice=voices[number % len(voices)], seed=number).read_all(),
                _unchanged,
            )


def text(number: int) -> str:
    """Two sentences, a different pair or seed for each number."""
    first, second = number % len(TEXTS), (number // len(TEXTS) + number + 1) % len(TEXTS)
    return f"{TEXTS[first]} {TEXTS[second]}"


def ways(samples: Samples) -> Iterator[tuple[str, Samples]]:
    """Yield what is heard at the end of each way, ``[n]`` at 24 kHz."""
    middle = len(samples) // 2
    yield "unchanged", samples
    yield "mp3 64k", through(CompressingEncoder("", "mp3", "libmp3lame", {}, bit_rate=64_000), samples)
    yield "opus 24k", through(CompressingEncoder("", "ogg", "libopus", {}, bit_rate=24_000), samples)
    yield "mu-law 8 kHz", telephone(samples)
    for way, seconds in (("cut to 5 s", CUT_S), ("cut to 2 s", SHORT_S)):
        half = round(seconds * SAMPLE_RATE / 2)
        yield way, samples[max(0, middle - half) : middle + half]


def through(encoder: Encoder, samples: Samples) -> Samples:
    """Return what is heard of a compressed file, or of samples in WAV."""
    audio, rate = decode_audio(encoder.encode(samples) + encoder.finish())
    return to_24_khz(audio.mean(1), rate)


def changed(samples: Samples, speed: float, rate: int) -> Samples:
    return through(make_encoder("flac", rate=rate, speed=speed), samples)


def telephone(samples: Samples) -> Samples:
    encoder = SampleEncoder("pcm_mulaw")
    data = io.BytesIO(encoder.encode(samples) + encoder.finish())
    audio, rate = soundfile.read(data, dtype="float32", format="RAW", subtype="ULAW", channels=1, samplerate=8_000)
    return to_24_khz(audio, rate)


def _unchanged(samples: Samples) -> Samples:
    return samples


def shares(found: Mapping[str, Mapping[str, list[float]]], threshold: float) -> dict[str, dict[str, str]]:
    """Return how many of how many reached the threshold, by kind and way."""
    return {
        kind: {way: f"{sum(value >= threshold for value in values)} of {len(values)}" for way, values in rows.items()}
        for kind, rows in found.items()
    }


def extremes(
    found: Mapping[str, Mapping[str, list[float]]], choose: Callable[[list[float]], float]
) -> dict[str, dict[str, float]]:
    return {kind: {way: round(choose(values), 4) for way, values in rows.items()} for kind, rows in found.items()}


def spread(values: list[float]) -> dict[str, float]:
    """Return the least, the median and the largest."""
    return {
        "least": round(min(values), 3),
        "median": round(float(np.median(values)), 3),
        "largest": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
