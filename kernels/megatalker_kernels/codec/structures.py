"""Arguments of the codec's kernels, as ``csrc/codec`` declares them; pointers are addresses on the device."""

from ctypes import Structure, c_float, c_int, c_longlong, c_void_p, sizeof
from enum import IntEnum
from typing import ClassVar

from megatalker_kernels.constants import enumerators

MAX_FRAMES = 8
"""Frames of a step, at most."""
ATTENTION_THREADS = 256
MIXING_THREADS = 256
WARPGROUP_COLUMNS = 96
"""Weight rows of a warpgroup's tile."""
TICKET_WORDS = 4
"""int64 words before a stream's codes: addresses of its context now and next, of its cache; frames before this call."""


class Activation(IntEnum):
    """Function applied to a product's sums after bias and residual."""

    PLAIN = 0
    GELU = 1
    GATED = 2
    """silu(even column) times the odd column after it: half as many columns."""
    SAMPLE = 3
    """The first column alone, within [-1, 1]."""


class Input(Structure):
    """Rows, and where each stream keeps those before them."""

    _fields_: ClassVar = [
        ("data", c_void_p),
        ("slot", c_longlong),
        ("rows", c_int),
        ("time", c_int),
        ("words", c_int),
        ("context", c_int),
    ]


class Epilogue(Structure):
    """Operands of the operations that follow a product's sums."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("bias", "residual", "frequency", "height", "raw", "packed")),
        ("channels", c_int),
        ("columns", c_int),
        ("activation", c_int),
    ]


class Tickets(Structure):
    """``[streams, stride]`` int64: each stream's ticket, then its codes."""

    _fields_: ClassVar = [("words", c_void_p), ("stride", c_longlong)]


class ProductStep(Structure):
    """Windows of rows times weights."""

    _fields_: ClassVar = [
        ("input", Input),
        ("epilogue", Epilogue),
        ("tickets", Tickets),
        ("weight", c_void_p),
        ("partial", c_void_p),
        ("arrivals", c_void_p),
        ("taps", c_int),
        ("dilation", c_int),
        ("shares", c_int),
        ("eps", c_float),
        ("scale", c_float),
    ]


class AttentionStep(Structure):
    """Attention over a ring of keys and values."""

    _fields_: ClassVar = [
        ("qkv", c_void_p),
        ("frequencies", c_void_p),
        ("out", c_void_p),
        ("tickets", Tickets),
        ("slot", c_longlong),
        *((name, c_int) for name in ("time", "heads", "kv_heads", "width", "window")),
    ]


class LookupStep(Structure):
    """Sums of codebook entries."""

    _fields_: ClassVar = [
        ("table", c_void_p),
        ("out", c_void_p),
        ("tickets", Tickets),
        *((name, c_int) for name in ("time", "groups", "codebook", "width")),
    ]


class MixingStep(Structure):
    """Depthwise convolution, then layer normalisation."""

    _fields_: ClassVar = [
        ("input", Input),
        ("tickets", Tickets),
        ("taps", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("eps", c_float),
    ]


def macros() -> dict[str, str]:
    """Constants that the sources share, and sizes that they check themselves against."""
    sizes = {
        f"{kind.__name__.removesuffix('Step').upper()}_BYTES": str(sizeof(kind))
        for kind in (ProductStep, AttentionStep, LookupStep, MixingStep)
    }
    threads = {"ATTENTION_THREADS": str(ATTENTION_THREADS), "MIXING_THREADS": str(MIXING_THREADS)}
    group = {"WARPGROUP_COLUMNS": str(WARPGROUP_COLUMNS)}
    words = {"FRAMES": str(MAX_FRAMES), "TICKET_WORDS": str(TICKET_WORDS), "ACTIVATIONS": enumerators(Activation)}
    return {**sizes, **threads, **group, **words}
