"""Codes to decode, and the official full forward they are compared with."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_codec
from megatalker.interfaces import CodecCapabilities
from megatalker_conformance.kept import Kept, content

EXACT = 1e-4
"""The largest difference of samples from those of the official decoder."""
ROUNDED_FRAMES = 190
"""Frames over which the official decoder's own error in float16 is looked for."""


class CodeSource:
    """Arbitrary, fixed codes of a checkpoint's codec.

    Args:
        checkpoint: whose codebooks they index.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.groups = checkpoint.codec_config.num_quantizers
        self.codebook_size = checkpoint.codec_config.codebook_size

    def random(self, frames: int, seed: int) -> Tensor:
        """``[frames, code groups]`` int64 on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.codebook_size, (frames, self.groups), generator=generator)


class OfficialCodec:
    """The official codec in float32, called once for all frames or samples; samples are kept on disk.

    Args:
        checkpoint: whose ``speech_tokenizer`` it is.
        device: where it runs.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._device = device

    def decode(self, codes: Tensor) -> Tensor:
        """``[frames, code groups]`` to ``[samples]`` on the CPU, in one forward of the decoder."""
        return self._kept.get(("full forward", content(codes)), lambda: {"samples": self._decode(codes)})["samples"]

    def decode_rounded(self, codes: Tensor) -> Tensor:
        """The same as :meth:`decode`, in float16."""
        key = "full forward in float16", content(codes)
        return self._kept.get(key, lambda: {"samples": self._decode(codes, torch.float16)})["samples"]

    def limit(self, capabilities: CodecCapabilities) -> float:
        """The largest difference of samples from :meth:`decode` that such a codec may have: :data:`EXACT`, or where it
        multiplies rounded numbers what the official decoder itself has in float16.
        """
        if capabilities.product_bits is None:
            return EXACT
        codes = CodeSource(self._checkpoint).random(ROUNDED_FRAMES, seed=7)
        return float((self.decode_rounded(codes) - self.decode(codes)).abs().max())

    def encode(self, audio: Tensor) -> Tensor:
        """``[samples]`` at 24 kHz to ``[frames, code groups]`` on the CPU."""
        with torch.inference_mode(), _no_tf32():
            codes: Tensor = self._tokenizer.encode(audio.numpy(), sr=24_000).audio_codes[0]
        return codes.cpu()

    def _decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        tokenizer = self._tokenizer
        if dtype != torch.float32:
            tokenizer = load_official_codec(self._checkpoint, self._device, dtype)
        with torch.inference_mode(), _no_tf32():
            audio: Tensor = tokenizer.model.decoder(codes.to(self._device).T[None])[0, 0]
        return audio.float().cpu()

    @cached_property
    def _kept(self) -> Kept:
        return Kept.open(self._checkpoint, self._device)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_official_codec(self._checkpoint, self._device, torch.float32)


def _no_tf32() -> Any:
    """Switch TF32 off, to which convolutions on CUDA otherwise round float32."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
