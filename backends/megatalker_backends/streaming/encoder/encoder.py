"""The whole encoder: convolutions, transformer, one convolution more, and the nearest entries of each codebook."""

import torch
from torch import Tensor
from torch.nn import functional as F

from megatalker.checkpoint import Checkpoint
from megatalker.plugins.precision import exact_products
from megatalker_backends.streaming.encoder.convolution import DownsamplingConvs, Read
from megatalker_backends.streaming.encoder.transformer import EncoderTransformer

LEAST_USAGE = 1e-5


class CodecEncoder:
    """Encodes recordings in float32. The last bits of its sums are those of the official encoder where the library that
    computes them has one order for long and short signals; so are its codes.

    Raises:
        CheckpointError: the checkpoint has no such encoder.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        config = checkpoint.codec_encoder_config

        def read(name: str) -> Tensor:
            # not copied: the last bits of a small convolution can depend on where its weights lie in memory
            return checkpoint.codec_tensor(f"encoder.{name}").to(device, torch.float32)

        self._device = device
        self._convolutions = DownsamplingConvs(read, config)
        self._transformer = EncoderTransformer(read, config)
        self._halve = read("downsample.conv.weight")
        semantic = config.num_semantic_quantizers
        rest = checkpoint.codec_config.num_quantizers - semantic
        self._books = [
            NearestEntries(read, f"quantizer.{kind}_residual_vector_quantizer", count)
            for kind, count in (("semantic", semantic), ("acoustic", rest))
        ]

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        """``[samples]`` float32 to ``[frames, code groups]`` int64 on the encoder's device."""
        with exact_products(self._device):
            signal = self._convolutions(audio.to(self._device).contiguous())
            signal = self._transformer(signal.transpose(1, 2)).transpose(1, 2)
            kernel, stride = self._halve.shape[2], self._halve.shape[2] // 2
            signal = F.pad(signal, (kernel - stride, -signal.shape[2] % stride), mode="replicate")
            latents = F.conv1d(signal, self._halve, stride=stride)
            return torch.cat([books(latents) for books in self._books]).T.contiguous()


class NearestEntries:
    """Codebooks, each for what those before it leave of a projected latent. Among entries that are equally near, the
    first is taken.
    """

    def __init__(self, read: Read, name: str, count: int) -> None:
        self._projection = read(f"{name}.input_proj.weight")
        books = [f"{name}.layers.{index}.codebook" for index in range(count)]
        self._entries = [
            read(f"{book}.embed_sum") / read(f"{book}.cluster_usage").clamp(min=LEAST_USAGE)[:, None] for book in books
        ]

    def __call__(self, latents: Tensor) -> Tensor:
        """``[1, hidden size, frames]`` to ``[codebooks, frames]`` int64."""
        left, codes = F.conv1d(latents, self._projection)[0].T, []
        for entries in self._entries:
            codes.append(torch.cdist(left[None], entries[None])[0].argmin(dim=1))
            left = left - F.embedding(codes[-1], entries)
        return torch.stack(codes)
