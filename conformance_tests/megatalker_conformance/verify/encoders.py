"""Voices that our encoders make, held to those of the official ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from megatalker.voices import Voice

CLOSE = 1e-5
"""The largest difference of a speaker embedding from the official one."""


@dataclass(frozen=True)
class VoiceComparison:
    """How far a voice is from the official one."""

    embedding: float
    """Largest difference of the speaker embeddings; infinite where their shapes differ."""
    codes: int | None
    """Frames with other codes, or all where their number differs; ``None``: the voice has no codes."""

    @property
    def equal(self) -> bool:
        """The codes are the same, and the embeddings differ by rounding at most."""
        return self.embedding <= CLOSE and not self.codes

    def __str__(self) -> str:
        if self.equal:
            return "equal what the official package gives"
        reasons = [f"embedding off by {self.embedding:.2g}"] * (not self.embedding <= CLOSE)
        reasons += [f"other codes in {self.codes} frames"] * bool(self.codes)
        return f"other than what the official package gives: {', '.join(reasons)}"


def compare_voice(voice: Voice, embedding: Tensor, codes: Tensor | None) -> VoiceComparison:
    """Compare a cloned voice with the official ``ref_spk_embedding`` ``[size]`` and ``ref_code`` ``[frames, groups]``;
    codes only where the voice has any.
    """
    assert voice.x_vector is not None, "a cloned voice"
    alike = voice.x_vector.shape == embedding.shape
    off = float((voice.x_vector.float() - embedding.float()).abs().max()) if alike else torch.inf
    ours = voice.reference_codes
    if ours is None or codes is None:
        return VoiceComparison(off, None)
    if ours.shape != codes.shape:
        return VoiceComparison(off, max(len(ours), len(codes)))
    return VoiceComparison(off, int((ours != codes).any(dim=1).sum()))
