"""Codec that runs the official decoder's full forward over everything said so far, and hands out the new tail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import Capabilities, Codec, CodecState, LoadContext
from megatalker.model_config import FRAME_SAMPLES, SAMPLE_RATE
from megatalker.official import load_official_codec

CAPABILITIES = Capabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({torch.float32}),
    encode=True,
)


class ReferenceCodecState(CodecState):
    """Every code of one stream so far, ``[frames, code groups]`` int64. Made by :meth:`ReferenceCodec.open`."""

    def __init__(self, codec: "ReferenceCodec", codes: Tensor) -> None:
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
        self._groups = checkpoint.codec_config.num_quantizers
        self._codebook_size = checkpoint.codec_config.codebook_size
        self._tokenizer = load_official_codec(checkpoint, context.device, torch.float32)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def open(self) -> ReferenceCodecState:
        return ReferenceCodecState(self, torch.empty(0, self._groups, dtype=torch.int64, device=self._device))

    @torch.inference_mode()
    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        owned = self._check(states, codes)
        chunks = []
        for state, fresh in zip(owned, codes, strict=True):
            so_far = torch.cat((state.codes, fresh.to(self._device, torch.int64)))
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

    def _check(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[ReferenceCodecState]:
        if len(states) != len(codes):
            raise InvalidRequestError(f"{len(states)} states and {len(codes)} tensors of codes, expected one for each")
        owned: list[ReferenceCodecState] = []
        for index, (state, fresh) in enumerate(zip(states, codes, strict=True)):
            if not isinstance(state, ReferenceCodecState) or state.codec is not self:
                raise InvalidRequestError(f"state {index} was made by another codec; use one from this codec's open()")
            if any(state is other for other in owned):
                raise InvalidRequestError(f"state {index} stands twice in one call; pass each state once")
            self._check_codes(index, fresh)
            owned.append(state)
        return owned

    def _check_codes(self, index: int, codes: Tensor) -> None:
        integer = not (codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool)
        if codes.ndim != 2 or len(codes) == 0 or codes.shape[1] != self._groups or not integer:
            raise InvalidRequestError(
                f"codes {index} are {codes.dtype} {list(codes.shape)}, expected integers [frames >= 1, {self._groups}]"
            )
        low, high = (int(bound) for bound in codes.aminmax())
        if low < 0 or high >= self._codebook_size:
            raise InvalidRequestError(
                f"codes {index} span {low} to {high}, expected 0 to {self._codebook_size - 1}; "
                "end-of-speech and other control ids are not codes"
            )


@contextmanager
def _exact_convolutions() -> Iterator[None]:
    """Keep cuDNN from rounding float32 convolutions to TF32, which alone exceeds the exactness tolerance."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
