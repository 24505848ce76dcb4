"""Whether a codec may run a ``decode`` call at all: everything is checked before any state advances.

Shared by the codecs of this distribution. Every message says what is wrong, what was expected and what to do.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from megatalker.checkpoint.config import CodecConfig
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import Codec, CodecState


class OwnedState(CodecState):
    """A state that knows the codec which made it."""

    codec: Codec


StateT = TypeVar("StateT", bound=OwnedState)


def check_states(codec: Codec, kind: type[StateT], states: Sequence[CodecState]) -> list[StateT]:
    """The states as ``kind``, if they are distinct and made by ``codec``.

    Raises:
        InvalidRequestError: see the class :class:`megatalker.interfaces.Codec`.
    """
    owned: list[StateT] = []
    for index, state in enumerate(states):
        if not isinstance(state, kind) or state.codec is not codec:
            raise InvalidRequestError(f"state {index} was made by another codec; use one from this codec's open()")
        if any(state is other for other in owned):
            raise InvalidRequestError(f"state {index} stands twice in one call; pass each state once")
        owned.append(state)
    return owned


def check_codes(config: CodecConfig, streams: int, codes: Sequence[Tensor]) -> list[Tensor]:
    """The codes of each of ``streams`` states as int64 on the CPU, if they are well formed.

    Raises:
        InvalidRequestError: see the class :class:`megatalker.interfaces.Codec`.
    """
    if len(codes) != streams:
        raise InvalidRequestError(f"{streams} states and {len(codes)} tensors of codes, expected one for each")
    return [_checked(config, index, fresh) for index, fresh in enumerate(codes)]


def _checked(config: CodecConfig, index: int, codes: Tensor) -> Tensor:
    groups = config.num_quantizers
    integer = not (codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool)
    if codes.ndim != 2 or len(codes) == 0 or codes.shape[1] != groups or not integer:
        raise InvalidRequestError(
            f"codes {index} are {codes.dtype} {list(codes.shape)}, expected integers [frames >= 1, {groups}]"
        )
    codes = codes.to("cpu", torch.int64)
    low, high = (int(bound) for bound in codes.aminmax())
    if low < 0 or high >= config.codebook_size:
        raise InvalidRequestError(
            f"codes {index} span {low} to {high}, expected 0 to {config.codebook_size - 1}; "
            "end-of-speech and other control ids are not codes"
        )
    return codes
