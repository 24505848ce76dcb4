"""Speech for the codec, whole on the device; batches are cut out of it by index."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker_demo_voice.shards import Shard
from megatalker_demo_voice.speech import FRAME


@dataclass(frozen=True, slots=True)
class CodecData:
    """Clips, end to end."""

    samples: Tensor
    """``[frames, 1920]`` int16."""
    phonemes: Tensor
    """``[frames, symbols]`` uint8: which share of each frame is which phoneme, 255 for all of it."""
    starts: Tensor
    """``[clips]``: first frame of each."""

    @classmethod
    def gather(cls, shards: Sequence[Shard], device: torch.device) -> "CodecData":
        symbols = sorted({symbol for shard in shards for symbol in shard.symbols})
        frames = np.concatenate([shard.frames for shard in shards]).astype(np.int64)
        return cls(
            torch.cat([torch.from_numpy(shard.samples).to(device) for shard in shards]).view(-1, FRAME),
            torch.from_numpy(np.concatenate([_coverage(shard, symbols) for shard in shards])).to(device),
            torch.from_numpy(np.cumsum(frames) - frames).to(device),
        )

    @property
    def hours(self) -> float:
        return len(self.samples) / 45_000

    def batch(self, clips: int, frames: int) -> tuple[Tensor, Tensor]:
        """Random stretches: ``[clips, frames * 1920]`` float32 and ``[clips, frames, symbols]`` float32.

        Half of them begin where a clip begins.
        """
        device, last = self.samples.device, len(self.samples) - frames
        anywhere = torch.randint(last + 1, (clips,), device=device)
        begun = self.starts[torch.randint(len(self.starts), (clips,), device=device)].clamp(max=last)
        first = torch.where(torch.rand(clips, device=device) < 0.5, anywhere, begun)
        rows = first[:, None] + torch.arange(frames, device=device)
        return self.samples[rows].flatten(1) / 32768, self.phonemes[rows] / 255


def _coverage(shard: Shard, symbols: Sequence[str]) -> NDArray[np.uint8]:
    """``[frames, symbols]``."""
    owner = np.repeat(np.arange(len(shard.frames)), shard.phoneme_counts)
    clip_first = np.cumsum(shard.frames) - shard.frames
    starts = shard.phoneme_starts.astype(np.int64)
    same_clip = np.append(owner[1:] == owner[:-1], False)
    ends = np.where(same_clip, np.append(starts[1:], 0), shard.frames[owner] * FRAME)
    column = np.array([symbols.index(symbol) for symbol in shard.symbols])[shard.phoneme_ids]
    counts = np.where(ends > starts, (ends - 1) // FRAME - starts // FRAME + 1, 0)
    index = np.repeat(np.arange(len(starts)), counts)
    frame = starts[index] // FRAME + np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    samples = np.minimum(ends[index], (frame + 1) * FRAME) - np.maximum(starts[index], frame * FRAME)
    cover = np.zeros((int(shard.frames.sum()), len(symbols)), np.float32)
    np.add.at(cover, (clip_first[owner[index]] + frame, column[index]), samples / FRAME)
    rounded: NDArray[np.uint8] = np.rint(cover.clip(0, 1) * 255).astype(np.uint8)
    return rounded
