"""Measures a codec on speech it never saw."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.codec_training import perplexities
from megatalker_demo_voice.pitch import pitch_kept
from megatalker_demo_voice.shards import Shard
from megatalker_demo_voice.speakers import EspeakSpeaker
from megatalker_demo_voice.speech import FRAME

_SHORTEST = 13
_LEVELS = {"all": None, "4 codes": 4, "2 codes": 2}


def clips_of(shard: Shard, device: torch.device, most: int) -> Iterator[tuple[int, Tensor]]:
    """Speaker and ``[1, samples]`` float32 of each clip of at least a second."""
    end = 0
    for frames, speaker in zip(shard.frames.tolist()[:most], shard.speakers.tolist()[:most], strict=True):
        begin, end = end, end + frames * FRAME
        if frames >= _SHORTEST:
            yield speaker, torch.from_numpy(shard.samples[begin:end]).to(device).float().unsqueeze(0) / 32768


@torch.no_grad()
def report_codec(
    codec: TrainableCodec,
    loss: nn.Module,
    shard: Shard,
    speakers: Sequence[EspeakSpeaker],
    device: torch.device,
    most: int,
) -> dict[str, Any]:
    """Spectral loss through all codes and through the first few, by speaker; pitch; how evenly codes are used."""
    losses: dict[str, list[float]] = {name: [] for name in _LEVELS}
    by_speaker: dict[str, list[float]] = {speaker.name: [] for speaker in speakers}
    seen, kept, voiced = [], 0, 0
    for speaker, wave in clips_of(shard, device, most):
        codes = codec.encode(wave)
        seen.append(codes[0])
        made = {name: codec.from_codes(codes, levels).wave.clamp(-1, 1) for name, levels in _LEVELS.items()}
        for name, heard in made.items():
            losses[name].append(float(loss(heard, wave)))
        counts = pitch_kept(made["all"][0], wave[0])
        kept, voiced = kept + counts[0], voiced + counts[1]
        by_speaker[speakers[speaker].name].append(losses["all"][-1])
    return {
        "clips": len(seen),
        "spectral_loss": {name: _mean(values) for name, values in losses.items()},
        "spectral_loss_by_speaker": {name: _mean(values) for name, values in by_speaker.items() if values},
        "pitch_kept": round(kept / max(1, voiced), 3),
        "codes_used": [round(value, 1) for value in perplexities(torch.cat(seen).T)],
    }


def _mean(values: list[float]) -> float:
    return round(sum(values) / max(1, len(values)), 4)
