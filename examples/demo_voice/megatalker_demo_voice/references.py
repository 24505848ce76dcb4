"""Recordings of voices as the speaker encoder sees them, whole on the device."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megatalker.voices.mel import MEL_HOP, log_mel
from megatalker_demo_voice.codec_model import TrainableCodec
from megatalker_demo_voice.shards import Shard
from megatalker_demo_voice.speech import FRAME

REFERENCE_FRAMES = 35
_ROWS = REFERENCE_FRAMES * FRAME // MEL_HOP
_HEARD = 128
"""Rows of a reference that are looked at, from anywhere: 1.4 s."""
_LOUDER = 1.0
"""Largest change of a reference's loudness, in nepers, up or down."""
_FLOOR = float(np.log(1e-5))
"""Value of the official spectrogram for silence."""


@dataclass(frozen=True, slots=True)
class References:
    """Log mel spectra, sorted by voice."""

    mels: Tensor
    """``[n, rows, 128]`` float16."""
    starts: Tensor
    """``[voices]``: first reference of each."""
    counts: Tensor

    @classmethod
    def build(
        cls, mels: NDArray[np.float16], voices: NDArray[np.uint16], count: int, device: torch.device
    ) -> "References":
        """Sort the references of ``count`` voices.

        Raises:
            ValueError: a voice has none.
        """
        counts = np.bincount(voices, minlength=count)
        if not counts.all():
            raise ValueError(
                f"{int((counts == 0).sum())} of {count} speakers say nothing long enough; make more speech"
            )
        order = np.argsort(voices, kind="stable")
        parts = (mels[order], np.cumsum(counts) - counts, counts)
        return cls(*(torch.from_numpy(part).to(device) for part in parts))

    def draw(self, voices: Tensor) -> Tensor:
        """``[batch]`` -> ``[batch, rows, 128]``: of each voice one reference, from anywhere in it, at any loudness."""
        device, counts = voices.device, self.counts[voices]
        chosen = self.starts[voices] + (torch.rand(len(voices), device=device) * counts).long().minimum(counts - 1)
        first = torch.randint(_ROWS - _HEARD + 1, (len(voices), 1), device=device)
        mels = self.mels[chosen[:, None], first + torch.arange(_HEARD, device=device)].float()
        gain = (2 * torch.rand(len(voices), 1, 1, device=device) - 1) * _LOUDER
        return (mels + gain).clamp(min=_FLOOR)


@torch.no_grad()
def reference_mels(
    codec: TrainableCodec, shard: Shard, codes: Tensor, device: torch.device
) -> tuple[NDArray[np.float16], NDArray[np.uint16]]:
    """The first clip of each speaker's turn that is long enough: every other one as the codec makes it.

    Returns:
        ``[n, rows, 128]`` and the speakers.
    """
    changes = np.flatnonzero(np.diff(shard.speakers.astype(np.int32), prepend=-1))
    turn = np.cumsum(np.bincount(changes, minlength=len(shard.speakers)))
    long = np.flatnonzero(shard.frames >= REFERENCE_FRAMES)
    chosen = long[np.unique(turn[long], return_index=True)[1]]
    rng = np.random.default_rng(len(shard.frames))
    begins = (np.cumsum(shard.frames) - shard.frames)[chosen]
    begins = begins + rng.integers(0, shard.frames[chosen] - REFERENCE_FRAMES + 1)
    rows = torch.from_numpy(begins)[:, None] + torch.arange(REFERENCE_FRAMES)
    waves = torch.from_numpy(shard.samples).view(-1, FRAME)[rows].flatten(1).to(device).float() / 32768
    waves[::2] = codec.from_codes(codes[rows[::2]].to(device).long()).wave.clamp(-1, 1)
    return log_mel(waves).cpu().to(torch.float16).numpy(), shard.speakers[chosen]
