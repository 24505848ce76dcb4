"""Codec that runs the official decoder's full forward over everything said so far, and hands out the new tail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.checkpoint.official import load_official_codec
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import Capabilities, Codec, CodecState, LoadContext
from megatalker_backends.codec_requests import OwnedState, check_codes, check_states

CAPABILITIES = Capabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({torch.float32}),
    encode=True,
)


class ReferenceCodecState(OwnedState):
    """Every code of one stream so far, ``[frames, code groups]`` int64. Made by :meth:`ReferenceCodec.open`."""

    def __init__(self, codec: Codec, codes: Tensor) -> None:
        self.codec = codec
        self.codes = codes

    def copy(self) -> Self:
        return type(self)(self.codec, self.codes)


class ReferenceCodec(Codec):
    """The definition of exactness: always float32, whatever the talker's dtype; cost grows with all that was said.

    Raises:
        CheckpointError: the official package cannot load the speech tokenizer.
    """

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        self._device = context.device
        self._config = checkpoint.codec_config
        self._tokenizer = load_official_codec(checkpoint, context.device, torch.float32)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def open(self) -> ReferenceCodecState:
        return ReferenceCodecState(
            self, torch.empty(0, self._config.num_quantizers, dtype=torch.int64, device=self._device)
        )

    @torch.inference_mode()
    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        owned = check_states(self, ReferenceCodecState, states)
        checked = check_codes(self._config, len(owned), codes)
        chunks = []
        for state, fresh in zip(owned, checked, strict=True):
            so_far = torch.cat((state.codes, fresh.to(self._device)))
            with _exact_convolutions():
                samples = self._tokenizer.model.decoder(so_far.T[None])[0, 0]
            chunks.append(samples[len(state.codes) * FRAME_SAMPLES :])
            state.codes = so_far
        return chunks

    @torch.inference_mode()
    def encode(self, audio: Tensor) -> Tensor:
        if audio.ndim != 1 or not audio.is_floating_point() or len(audio) == 0:
            raise InvalidRequestError(
                f"audio is {audio.dtype} {list(audio.shape)}, expected floating point [samples >= 1]: "
                f"mix to one channel and resample to {SAMPLE_RATE} Hz first"
            )
        if not bool(torch.isfinite(audio).all()):
            raise InvalidRequestError("audio holds NaN or infinity, expected samples within [-1, 1]; check its source")
        with _exact_convolutions():
            encoded = self._tokenizer.encode(audio.detach().cpu().float().numpy(), sr=SAMPLE_RATE)
        codes: Tensor = encoded.audio_codes[0]
        return codes.to(torch.int64)

    def close(self) -> None:
        del self._tokenizer


@contextmanager
def _exact_convolutions() -> Iterator[None]:
    """Keep cuDNN from rounding float32 convolutions to TF32, which alone exceeds the exactness tolerance."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
