"""Small checks that the shells of talkers and codecs share."""

import math
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from megatalker.errors import CapacityError, InvalidRequestError, MalformedResultError, describe_error
from megatalker.interfaces import Limit

ValueT = TypeVar("ValueT")

LARGEST_SAMPLE = 1 + 1e-4
"""The official decoder's samples lie within [-1, 1], and a codec's within 1e-4 of them: a larger one is a fault."""


@contextmanager
def backend_call(what: str) -> Iterator[None]:
    """Wrap a call that a backend has no reason to refuse, since the request has been checked before.

    Raises:
        MalformedResultError: the backend raised ``InvalidRequestError`` or ``CapacityError``.
        Exception: any other error that it raised.
    """
    try:
        yield
    except (InvalidRequestError, CapacityError) as error:
        raise MalformedResultError(f"{what} raised {describe_error(error)}, which only core may raise here") from error


def samples_complaint(peak: float) -> str | None:
    """Say what is wrong with samples whose largest absolute value is ``peak`` (NaN: one of them is), if anything."""
    if not math.isfinite(peak):
        return "holds NaN or infinity"
    return f"reaches {peak:g}, expected samples within [-1, 1]" if peak > LARGEST_SAMPLE else None


def expect(kind: type, value: ValueT, source: str) -> ValueT:
    """``value``, if it is a ``kind``; raises ``MalformedResultError`` naming ``source``."""
    if not isinstance(value, kind):
        raise MalformedResultError(f"{source} is {type(value).__name__}, expected {kind.__name__}")
    return value


def stated_limit(name: str, value: int | Limit, least: int) -> int | None:
    """A limit of a loaded instance as a number; ``None``: it has none of its own.

    Raises:
        MalformedResultError: it is unknown even now, or makes no sense.
    """
    if value is Limit.NONE:
        return None
    if type(value) is int and value >= least:
        return value
    raise MalformedResultError(
        f"capabilities.{name} of the loaded instance is {value!r}, expected an integer from {least} on or Limit.NONE"
    )


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is; one on an accelerator is taken on trust."""
    return tensor.device.type != "cpu" or bool(torch.isfinite(tensor).all())


def check_ids(what: str, ids: Iterable[int], limit: int) -> None:
    """Raises ``InvalidRequestError`` unless each is an integer from 0 to ``limit - 1``."""
    for value in ids:
        try:
            inside = 0 <= operator.index(value) < limit
        except TypeError:
            inside = False
        if not inside:
            raise InvalidRequestError(f"{what}: id {value!r} lies outside the vocabulary, expected 0 to {limit - 1}")


def describe(value: object) -> str:
    """Describe a value for messages: ``float32 [2, 64]`` for a tensor, else the name of its type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
