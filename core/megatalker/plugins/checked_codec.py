"""A codec in its checking shell; see :mod:`megatalker.plugins.checked`."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES, SAMPLE_RATE, CodecConfig
from megatalker.errors import CapacityError, InvalidRequestError, MalformedResultError, UnsupportedError
from megatalker.interfaces import Codec, CodecCapabilities, CodecState
from megatalker.plugins.checks import backend_call, describe, expect, samples_complaint, stated_limit


class CheckedState(CodecState):
    """A backend's state, and which codec made it."""

    def __init__(self, owner: "CheckedCodec", inner: CodecState) -> None:
        self.owner, self.inner = owner, inner

    def copy(self) -> Self:
        """Return a copy; see :meth:`CodecState.copy`. Raises ``MalformedResultError`` where it is the state itself."""
        with backend_call("copy of a codec state"):
            twin = expect(CodecState, self.inner.copy(), "a codec state's copy")
        if twin is self.inner:
            raise MalformedResultError("a codec state's copy is the state itself, expected an independent one")
        return type(self)(self.owner, twin)


class CheckedCodec:
    """The engine's view of a codec: ``codec``, with every call checked.

    Args:
        codec: just loaded.
        config: of its checkpoint.

    Raises:
        MalformedResultError: ``codec`` is no ``Codec``, or does not state its limits.
    """

    def __init__(self, codec: Codec, config: CodecConfig) -> None:
        self.codec = expect(Codec, codec, "what the backend loaded")
        self.capabilities = expect(CodecCapabilities, codec.capabilities, "capabilities of the loaded instance")
        self.max_streams = stated_limit("max_streams", self.capabilities.max_streams, 1)
        """``None``: it has no limit of its own."""
        self._config = config

    def open(self) -> CheckedState:
        """Return a new state; see :meth:`Codec.open`."""
        with backend_call("open"):
            return CheckedState(self, expect(CodecState, self.codec.open(), "what open returned"))

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        """Decode frames; see :meth:`Codec.decode`. ``codes`` may be of any integer type and on any device.

        Raises (before any state has advanced):
            InvalidRequestError: a wrong shape, an id outside the codebook, a state named twice or made by another
                codec.
            CapacityError: more than ``max_streams`` states.
            MalformedResultError: the backend did not return float32 samples, 1920 a frame, for each state.
        """
        inner = self._check_states(states)
        checked = self._check_codes(codes, len(inner))
        if not inner:
            return []
        with backend_call("decode"):
            chunks = self.codec.decode(inner, checked)
        _check_chunks(chunks, checked)
        return list(chunks)

    def encode(self, audio: Tensor) -> Tensor:
        """Encode a waveform; see :meth:`Codec.encode`. ``audio`` may be of any floating-point type and on any device.

        Raises:
            UnsupportedError: the capabilities do not list ``encode``.
            InvalidRequestError: no samples, several channels, or values that are not finite.
            MalformedResultError: the backend did not return at least one frame of codes from the codebook.
        """
        if not self.capabilities.encode:
            raise UnsupportedError(
                f"{type(self.codec).__name__} does not encode audio; choose a codec whose capabilities list encode"
            )
        if audio.ndim != 1 or not audio.is_floating_point() or len(audio) == 0:
            raise InvalidRequestError(
                f"audio is {describe(audio)}, expected floating point [samples >= 1]: "
                f"mix to one channel and resample to {SAMPLE_RATE} Hz first"
            )
        samples = audio.detach().to("cpu", torch.float32)
        if not bool(torch.isfinite(samples).all()):
            raise InvalidRequestError("audio holds NaN or infinity, expected samples within [-1, 1]; check its source")
        with backend_call("encode"):
            codes = expect(Tensor, self.codec.encode(samples), "what encode returned")
        shaped = codes.ndim == 2 and len(codes) > 0 and codes.shape[1] == self._config.num_quantizers
        if codes.dtype != torch.int64 or not shaped:
            raise MalformedResultError(
                f"encode returned {describe(codes)}, expected int64 [frames >= 1, {self._config.num_quantizers}]"
            )
        if codes.device.type == "cpu" and not self._inside(codes):
            raise MalformedResultError(
                f"encode returned codes from {int(codes.min())} to {int(codes.max())}, "
                f"expected 0 to {self._config.codebook_size - 1}"
            )
        return codes

    def smoke_test(self) -> None:
        """Make the audio of one frame; raises what goes wrong, and ``MalformedResultError`` where that is no audio."""
        (chunk,) = self.decode([self.open()], [torch.zeros(1, self._config.num_quantizers, dtype=torch.int64)])
        complaint = samples_complaint(float(chunk.abs().max()))
        if complaint is not None:
            raise MalformedResultError(f"the codec's audio {complaint}")

    def warmup(self) -> None:
        """Prepare for the first call; see :meth:`Codec.warmup`."""
        self.codec.warmup()

    def close(self) -> None:
        """Free all resources; see :meth:`Codec.close`."""
        self.codec.close()

    def _check_states(self, states: Sequence[CodecState]) -> list[CodecState]:
        if self.max_streams is not None and len(states) > self.max_streams:
            raise CapacityError(
                f"{len(states)} states in one call, this codec takes {self.max_streams}; split the call"
            )
        inner: list[CodecState] = []
        for index, state in enumerate(states):
            if not isinstance(state, CheckedState) or state.owner is not self:
                raise InvalidRequestError(f"state {index} was made by another codec; use one from this codec's open()")
            inner.append(state.inner)
        if len(set(map(id, inner))) < len(inner):
            index = next(index for index, state in enumerate(inner) if any(state is other for other in inner[:index]))
            raise InvalidRequestError(f"state {index} stands twice in one call; pass each state once")
        return inner

    def _check_codes(self, codes: Sequence[Tensor], states: int) -> list[Tensor]:
        if len(codes) != states:
            raise InvalidRequestError(f"{states} states and {len(codes)} tensors of codes, expected one for each")
        groups = self._config.num_quantizers
        for index, fresh in enumerate(codes):
            integer = not (fresh.is_floating_point() or fresh.is_complex() or fresh.dtype == torch.bool)
            shape = fresh.shape
            if len(shape) != 2 or shape[0] == 0 or shape[1] != groups or not integer:
                raise InvalidRequestError(
                    f"codes {index} are {describe(fresh)}, expected integers [frames >= 1, {groups}]"
                )
        here = [fresh.to("cpu", torch.int64) for fresh in codes]
        if here and not self._inside(torch.cat(here) if len(here) > 1 else here[0]):
            index = next(index for index, fresh in enumerate(here) if not self._inside(fresh))
            raise InvalidRequestError(
                f"codes {index} span {int(here[index].min())} to {int(here[index].max())}, "
                f"expected 0 to {self._config.codebook_size - 1}; end-of-speech and other control ids are not codes"
            )
        return here

    def _inside(self, codes: Tensor) -> bool:
        low, high = codes.aminmax()
        return int(low) >= 0 and int(high) < self._config.codebook_size


def _check_chunks(chunks: object, codes: Sequence[Tensor]) -> None:
    if not isinstance(chunks, list) or len(chunks) != len(codes):
        found = f"{len(chunks)} chunks" if isinstance(chunks, list) else type(chunks).__name__
        raise MalformedResultError(f"codec returned {found} for {len(codes)} states")
    for index, (chunk, given) in enumerate(zip(chunks, codes, strict=True)):
        expected = given.shape[0] * FRAME_SAMPLES
        if not isinstance(chunk, Tensor) or chunk.dtype != torch.float32 or chunk.shape != (expected,):
            raise MalformedResultError(f"codec chunk {index} is {describe(chunk)}, expected float32 [{expected}]")
