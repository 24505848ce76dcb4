"""Codec that runs the official decoder's full forward over everything said so far, and hands out the new tail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.checkpoint.official import load_official_codec
from megatalker.interfaces import Codec, CodecCapabilities, CodecState, LoadContext

CAPABILITIES = CodecCapabilities(
    devices=frozenset({"cpu", "cuda", "mps"}),
    dtypes=frozenset({torch.float32}),
    encode=True,
)


class ReferenceCodecState(CodecState):
    """Every code of one stream so far, ``[frames, code groups]`` int64."""

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes

    def copy(self) -> Self:
        return type(self)(self.codes)


class ReferenceCodec(Codec):
    """The definition of exactness: always float32, whatever the talker's dtype; cost grows with all that was said.

    Raises:
        CheckpointError: the official package cannot load the speech tokenizer.
    """

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        self._device = context.device
        self._groups = checkpoint.codec_config.num_quantizers
        self._tokenizer = load_official_codec(checkpoint, context.device, torch.float32)

    @property
    def capabilities(self) -> CodecCapabilities:
        return CAPABILITIES

    def open(self) -> ReferenceCodecState:
        return ReferenceCodecState(torch.empty(0, self._groups, dtype=torch.int64, device=self._device))

    @torch.inference_mode()
    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        chunks, advanced = [], []
        for state, fresh in zip(states, codes, strict=True):
            assert isinstance(state, ReferenceCodecState), "the shell lets no other codec's states through"
            so_far = torch.cat((state.codes, fresh.to(self._device)))
            with _exact_convolutions():
                samples = self._tokenizer.model.decoder(so_far.T[None])[0, 0]
            chunks.append(samples[len(state.codes) * FRAME_SAMPLES :])
            advanced.append((state, so_far))
        for state, so_far in advanced:
            state.codes = so_far
        return chunks

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        with _exact_convolutions():
            encoded = self._tokenizer.encode(audio.numpy(), sr=SAMPLE_RATE)
        codes: Tensor = encoded.audio_codes[0]
        return codes.to(torch.int64)

    def close(self) -> None:
        del self._tokenizer


@contextmanager
def _exact_convolutions() -> Iterator[None]:
    """Keep cuDNN from rounding float32 convolutions to TF32, which alone exceeds the exactness tolerance."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
