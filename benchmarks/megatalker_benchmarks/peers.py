"""Milliseconds a frame of other packages on the same checkpoint: ``megatalker bench peers --help``.

Each is called as its own documentation shows. None promises how many frames it makes: the official package swallows
``min_new_tokens``, so speech may end before ``max_new_tokens``. So frames are counted in the audio that comes back, and
the time of a frame is what more frames cost: the slope of a line through the time of every call over its frames. The
prompt and what happens once an utterance do not count; what a package does for each frame, its codec included, does.

Each wants an environment of its own: ``benchmarks/peers/PEER.txt`` pins it, and says how to make and use it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.checkpoint.official import load_qwen_tts
from megatalker.cli.bench.report import environment
from megatalker_benchmarks.report import add_json_option, hand_out, whole

TEXT = "The quick brown fox jumps over the lazy dog, and then it takes a long rest in the warm afternoon sun."
LIMITS = (8, 24, 40)
"""``max_new_tokens`` of the calls of a round."""


@dataclass(frozen=True, slots=True)
class PeerCall:
    """One utterance."""

    frames: int
    """Frames of the audio that came back."""
    seconds: float
    first_s: float | None = None
    """Seconds to the first chunk, where the package streams."""


Speak = Callable[[int], tuple[int, float | None]]
"""``max_new_tokens`` -> samples, and seconds to the first chunk."""


def official(folder: Path, speaker: str, device: torch.device) -> Speak:
    """``qwen-tts``: no streaming, so there is no first chunk."""
    load = load_qwen_tts().Qwen3TTSModel.from_pretrained
    model: Any = load(str(folder), device_map=str(device), dtype=_dtype(device))

    def speak(limit: int) -> tuple[int, None]:
        (audio,), _ = model.generate_custom_voice(text=TEXT, speaker=speaker, language="English", max_new_tokens=limit)
        return len(audio), None

    return speak


def faster(folder: Path, speaker: str, device: torch.device) -> Speak:
    """``faster-qwen3-tts``, streaming chunks of one frame."""
    load_qwen_tts()
    from faster_qwen3_tts import FasterQwen3TTS

    model = FasterQwen3TTS.from_pretrained(str(folder), device=str(device), dtype=_dtype(device))

    def speak(limit: int) -> tuple[int, float]:
        began, first, samples = time.perf_counter(), 0.0, 0
        chunks = model.generate_custom_voice_streaming(
            text=TEXT, speaker=speaker, language="English", max_new_tokens=limit, min_new_tokens=limit, chunk_size=1
        )
        for audio, *_ in chunks:
            first = first or time.perf_counter() - began
            samples += len(audio)
        return samples, first

    return speak


PEERS: dict[str, Callable[[Path, str, torch.device], Speak]] = {"qwen-tts": official, "faster-qwen3-tts": faster}


def timed(speak: Speak, limit: int, device: torch.device) -> PeerCall:
    """Time one call.

    Raises:
        SystemExit: it gave no whole number of frames, so that they cannot be counted.
    """
    _wait(device)
    began = time.perf_counter()
    samples, first = speak(limit)
    _wait(device)
    seconds = time.perf_counter() - began
    if samples % FRAME_SAMPLES:
        raise SystemExit(f"{samples} samples came back, which is no whole number of frames of {FRAME_SAMPLES}")
    return PeerCall(samples // FRAME_SAMPLES, seconds, first)


def frame_ms(calls: Sequence[PeerCall]) -> float:
    """Return the cost of one more frame.

    Raises:
        SystemExit: all calls made the same number of frames, from which it cannot be told.
    """
    frames = [call.frames for call in calls]
    if len(set(frames)) < 2:
        raise SystemExit(f"every call made {frames[0]} frames; take more rounds, or a checkpoint that speaks longer")
    return statistics.linear_regression(frames, [call.seconds for call in calls]).slope * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("checkpoint", type=Path, help="a CustomVoice checkpoint")
    parser.add_argument("--speaker", required=True)
    parser.add_argument("--rounds", type=whole(), default=5, help=f"of {len(LIMITS)} calls each")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda", 0))
    add_json_option(parser)
    options = parser.parse_args()
    speak = PEERS[options.peer](options.checkpoint, options.speaker, options.device)
    speak(LIMITS[0])
    calls = [timed(speak, limit, options.device) for _ in range(options.rounds) for limit in LIMITS]
    first_ms = [call.first_s * 1e3 for call in calls if call.first_s is not None]
    report = {
        "peer": options.peer,
        "environment": environment(options.device),
        "max_new_tokens": list(LIMITS) * options.rounds,
        "frames": [call.frames for call in calls],
        "seconds": [round(call.seconds, 6) for call in calls],
        "frame_ms": frame_ms(calls),
        "first_chunk_ms": statistics.median(first_ms) if first_ms else None,
    }
    hand_out(report, options.json)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
