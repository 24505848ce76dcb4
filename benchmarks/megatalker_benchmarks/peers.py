"""Milliseconds a frame of other packages on the same checkpoint: ``megatalker bench peers --help``.

Each is called as its own documentation shows. The time of a frame is what more frames cost, so that the prompt and what
happens once an utterance do not count; what a package does for each frame, its codec included, does.

Each wants an environment of its own: ``benchmarks/peers/PEER.txt`` pins it, and says how to make and use it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatalker.checkpoint.official import load_qwen_tts

TEXT = "The quick brown fox jumps over the lazy dog, and then it takes a long rest in the warm afternoon sun."
FEW, MANY = 8, 40


def official(folder: Path, speaker: str) -> Callable[[int], float | None]:
    """``qwen-tts``: no streaming, so there is no first chunk."""
    model: Any = load_qwen_tts().Qwen3TTSModel.from_pretrained(str(folder), device_map="cuda:0", dtype=torch.bfloat16)

    def speak(frames: int) -> None:
        model.generate_custom_voice(
            text=TEXT, speaker=speaker, language="English", max_new_tokens=frames, min_new_tokens=frames
        )

    return speak


def faster(folder: Path, speaker: str) -> Callable[[int], float | None]:
    """``faster-qwen3-tts``, streaming chunks of one frame."""
    load_qwen_tts()
    from faster_qwen3_tts import FasterQwen3TTS

    model = FasterQwen3TTS.from_pretrained(str(folder), device="cuda", dtype=torch.bfloat16)

    def speak(frames: int) -> float:
        began, first = time.perf_counter(), 0.0
        chunks = model.generate_custom_voice_streaming(
            text=TEXT, speaker=speaker, language="English", max_new_tokens=frames, min_new_tokens=frames, chunk_size=1
        )
        for _ in chunks:
            first = first or time.perf_counter() - began
        return first

    return speak


PEERS = {"qwen-tts": official, "faster-qwen3-tts": faster}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("checkpoint", type=Path, help="a CustomVoice checkpoint")
    parser.add_argument("--speaker", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    speak = PEERS[options.peer](options.checkpoint, options.speaker)
    speak(FEW)
    frame_ms, first_ms = [], []
    for _ in range(options.rounds):
        seconds = []
        for frames in (FEW, MANY):
            torch.cuda.synchronize()
            began = time.perf_counter()
            first = speak(frames)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            if first:
                first_ms.append(first * 1e3)
        frame_ms.append((seconds[1] - seconds[0]) / (MANY - FEW) * 1e3)
    report = {
        "peer": options.peer,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "frame_ms": statistics.median(frame_ms),
        "first_chunk_ms": statistics.median(first_ms) if first_ms else None,
    }
    text = json.dumps(report, indent=1)
    print(text)  # noqa: T201
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
