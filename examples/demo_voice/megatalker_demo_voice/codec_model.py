"""The official codec modules, made ready for training, with our quantisers between them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megatalker.checkpoint.official import load_qwen_tts
from megatalker.testing.configs import codec_config
from megatalker.testing.recipe import CheckpointRecipe
from megatalker.testing.weights import random_tensor
from megatalker_demo_voice.quantiser import ResidualQuantiser

_BRANCH = re.compile(r"(layer_scale\.scale|\.gamma|\.conv2\.conv\.weight)$")
_BRANCH_SCALE = 0.5
"""Residual branches begin softly: learning is faster."""


@torch.no_grad()
def official_codec(recipe: CheckpointRecipe, seed: int = 0) -> Any:
    """A ``Qwen3TTSTokenizerV2Model`` of the recipe's sizes, whose weights let signals through at unit size.

    Official initialisation is meant for loading weights: a decoder made that way is silent and stays so.
    """
    load_qwen_tts()
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

    raw = {key: value for key, value in codec_config(recipe).items() if key not in ("architectures", "model_type")}
    model = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**raw))
    for name, parameter in model.named_parameters():
        if "codebook" not in name:
            start = torch.from_numpy(random_tensor(name, tuple(parameter.shape), seed, end_id=0))
            parameter.copy_(start * (_BRANCH_SCALE if _BRANCH.search(name) else 1.0))
    return model


@dataclass(frozen=True, slots=True)
class Coded:
    """One batch through the codec."""

    wave: Tensor
    """``[batch, samples]``."""
    commitment: Tensor
    """Scalar: how far the encoder is from its codes, and from unit size."""
    first: Tensor
    """``[batch, frames, width]``: what code 0 says."""
    codes: Tensor
    """``[levels, batch * frames]``; empty without quantisation."""


class TrainableCodec(nn.Module):
    """Waveform -> latents -> codes -> waveform."""

    def __init__(self, recipe: CheckpointRecipe, sizes: Sequence[int]) -> None:
        super().__init__()
        self.official = official_codec(recipe)
        width = recipe.codec.codebook_dim // 2
        self.first = ResidualQuantiser(sizes[:1], width)
        self.rest = ResidualQuantiser(sizes[1:], width)
        self._hastened = False

    def hasten(self) -> None:
        """Until :meth:`settle`, train in bfloat16."""
        self._hastened = True

    def settle(self) -> None:
        """Compute in full precision."""
        self._hastened = False

    def place(self, device: torch.device) -> "TrainableCodec":
        """Move to ``device``, except for the numbers that the official convolutions compute their padding from."""
        self.to(device)
        for module in self.modules():
            if type(module).__name__ == "MimiConv1d":
                for name in ("stride", "kernel_size", "padding_total"):
                    setattr(module, name, getattr(module, name).cpu())
        return self

    def latents(self, wave: Tensor) -> tuple[Tensor, Tensor]:
        """``[batch, samples]`` -> two times ``[batch, frames, width]``: for code 0, and for the other codes."""
        encoder = self.official.encoder
        hidden = encoder.encoder(wave.unsqueeze(1)).transpose(1, 2)
        hidden = encoder.encoder_transformer(hidden, use_cache=False, return_dict=True).last_hidden_state
        hidden = encoder.downsample(hidden.transpose(1, 2))
        quantizer = encoder.quantizer
        first = quantizer.semantic_residual_vector_quantizer.input_proj(hidden)
        rest = quantizer.acoustic_residual_vector_quantizer.input_proj(hidden)
        return first.transpose(1, 2), rest.transpose(1, 2)

    def wave(self, first: Tensor, rest: Tensor) -> Tensor:
        """``[batch, frames, width]`` each -> ``[batch, frames * 1920]``."""
        decoder = self.official.decoder
        quantizer = decoder.quantizer
        hidden = quantizer.rvq_first.output_proj(first.transpose(1, 2))
        hidden = hidden + quantizer.rvq_rest.output_proj(rest.transpose(1, 2))
        hidden = decoder.pre_conv(hidden).transpose(1, 2)
        hidden = decoder.pre_transformer(inputs_embeds=hidden, use_cache=False).last_hidden_state.transpose(1, 2)
        for blocks in decoder.upsample:
            for block in blocks:
                hidden = block(hidden)
        for block in decoder.decoder:
            hidden = block(hidden)
        wave: Tensor = hidden.squeeze(1)
        return wave

    def continuous(self, wave: Tensor, noise: float) -> Coded:
        """Without codes: latents with noise of this size relative to each channel's spread."""
        first, rest = self._encoded(wave)
        away = _away_from_unit(first, rest)
        first, rest = (
            latent + noise * latent.detach().std((0, 1)) * torch.randn_like(latent) for latent in (first, rest)
        )
        return Coded(self._decoded(first, rest), away, first, wave.new_zeros(0))

    def quantised(self, wave: Tensor, *, follow: bool, dropout: float) -> Coded:
        """Through codes; for a share ``dropout`` of the batch, through the first few of them only."""
        first, rest = self._encoded(wave)
        batch, frames, width = first.shape
        codes_first, sums_first = self.first(first.reshape(-1, width), follow=follow)
        codes_rest, sums_rest = self.rest(rest.reshape(-1, width), follow=follow)
        coded_first = sums_first[-1].view_as(first)
        full = sums_rest[-1].view_as(rest)
        commitment = F.mse_loss(first, coded_first) + F.mse_loss(rest, full) + _away_from_unit(first, rest)
        if dropout:
            kept = torch.randint(0, 6, (batch,), device=wave.device)
            partial = sums_rest.view(-1, batch, frames, width)[kept, torch.arange(batch, device=wave.device)]
            shortened = torch.rand(batch, 1, 1, device=wave.device) < dropout
            full = torch.where(shortened, partial, full)
        out = self._decoded(first + (coded_first - first).detach(), rest + (full - rest).detach())
        return Coded(out, commitment, first + (coded_first - first).detach(), torch.cat([codes_first, codes_rest]))

    @torch.no_grad()
    def encode(self, wave: Tensor) -> Tensor:
        """``[batch, samples]`` -> ``[batch, frames, levels]`` codes."""
        latents = self.latents(wave)
        batch, frames, width = latents[0].shape
        parts = [
            q(x.reshape(-1, width), follow=False)[0] for q, x in zip((self.first, self.rest), latents, strict=True)
        ]
        return torch.cat(parts).view(-1, batch, frames).permute(1, 2, 0)

    def from_codes(self, codes: Tensor, levels: int | None = None) -> Coded:
        """``[batch, frames, levels]`` -> the decoder's answer to the first ``levels``; only the decoder learns."""
        first, rest = self.first.decode(codes[..., :1]), self.rest.decode(codes[..., 1:levels])
        return Coded(self._decoded(first, rest), first.new_zeros(()), first, codes.flatten(0, 1).T)

    def _encoded(self, wave: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(wave.device.type, torch.bfloat16, self._hastened):
            first, rest = self.latents(wave)
        return first.float(), rest.float()

    def _decoded(self, first: Tensor, rest: Tensor) -> Tensor:
        with torch.autocast(first.device.type, torch.bfloat16, self._hastened):
            wave = self.wave(first, rest)
        return wave.float()


def _away_from_unit(*latents: Tensor) -> Tensor:
    """How far channels are from unit spread around zero, where half precision is at ease.

    Codebooks follow the latents: without this, both run away together.
    """
    return sum(
        (latent.mean((0, 1)).pow(2).mean() + (latent.std((0, 1)) - 1).pow(2).mean() for latent in latents),
        latents[0].new_zeros(()),
    )
