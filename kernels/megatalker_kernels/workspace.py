"""Everything that the kernels write, and the per-stream state they read: one guarded buffer each."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from megatalker_kernels.constants import (
    CHUNK_STATS,
    KBLOCK,
    OPERAND,
    PAGE,
    QUAD,
    ROWS,
    STORED,
    WARPS,
    WIDE_ROWS,
    WIDE_STREAMS,
    BarrierWord,
    StatusWord,
)
from megatalker_kernels.errors import GuardError
from megatalker_kernels.params import Sampling, Structures
from megatalker_kernels.shapes import KernelShape
from megatalker_kernels.transfer import send

GUARD_BYTES = 512
GUARD = 0xA5


class GuardedBuffers:
    """Zeroed buffers, each an attribute. Before and behind each lies a guard that must not be written.

    Args:
        device: where they lie, but for those in host memory, which a GPU sees as well.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._raw: dict[str, Tensor] = {}

    def _new(self, name: str, size: tuple[int, ...], dtype: torch.dtype, *, host: bool = False) -> Tensor:
        length = prod(size) * dtype.itemsize
        padded = -(-length // GUARD_BYTES) * GUARD_BYTES
        raw = torch.empty(
            GUARD_BYTES + padded + GUARD_BYTES,
            dtype=torch.uint8,
            device="cpu" if host else self.device,
            pin_memory=host and self.device.type == "cuda",
        )
        raw.fill_(GUARD)
        self._raw[name] = raw
        inside = raw[GUARD_BYTES : GUARD_BYTES + length]
        inside.zero_()
        return inside.view(dtype).view(size)

    def buffers(self) -> dict[str, Tensor]:
        """All buffers by name."""
        return {name: getattr(self, name) for name in self._raw}

    @property
    def device_bytes(self) -> int:
        """Bytes of the buffers that lie on the device, guards included."""
        own = [raw.numel() for raw in self._raw.values() if raw.device == self.device]
        inner = [one.device_bytes for one in vars(self).values() if isinstance(one, GuardedBuffers)]
        return sum(own) + sum(inner)

    def damaged(self) -> list[str]:
        """Names of the buffers whose guards were overwritten."""
        names = []
        for name, buffer in self.buffers().items():
            raw, end = self._raw[name], GUARD_BYTES + buffer.numel() * buffer.element_size()
            if not bool((raw[:GUARD_BYTES] == GUARD).all() and (raw[end:] == GUARD).all()):
                names.append(name)
        return names

    def copy_from(self, other: Self) -> None:
        """Take over the contents of every buffer of an equally sized set."""
        for name, raw in self._raw.items():
            raw.copy_(other._raw[name])


@dataclass(frozen=True, slots=True)
class Assignment:
    """State with which a stream begins in its slot."""

    slot: int
    sampling: Sampling
    history: Sequence[int] = ()
    """First codes of frames that were emitted already."""
    pages: Sequence[int] = ()
    """Pages of keys and values, in the order of the stream's positions."""


class WideWorkspace(GuardedBuffers):
    """Buffers for the rows of a wide launch, named as in ``csrc/params.cuh`` and ``csrc/wide_params.cuh``. The former
    describes the layout of buffers that the megakernel has, too.

    Args:
        shape: the kernel's sizes.
        streams: of one launch, at most.
        device: where the buffers lie; ``codes`` lies in host memory.
    """

    def __init__(self, shape: KernelShape, streams: int, device: torch.device) -> None:
        super().__init__(device)
        talker, predictor, groups = shape.talker, shape.predictor, shape.code_groups
        real, whole = torch.float32, torch.int32
        rows = WIDE_ROWS
        self.streams = min(streams, WIDE_STREAMS)
        self.chunks = max(rows, self.streams * shape.max_chunks)
        """Pieces of ``CHUNK`` positions that the rows of one launch attend to, at most."""
        self.text = self._new("text", (rows, talker.hidden), real)
        self.x = self._new("x", (rows * shape.largest("hidden"),), real)
        self.qkv = self._new("qkv", (rows * shape.largest("qkv"),), real)
        self.operand = self._operand("operand", rows, shape.largest("hidden"))
        self.attention = self._operand("attention", rows, max(shape.largest("attention"), talker.hidden))
        self.activation = self._operand("activation", rows, shape.largest("intermediate"))
        self.squares = self._new("squares", (rows, -(-shape.largest("hidden") // KBLOCK // WARPS) * WARPS), real)
        self.partial = self._new("partial", (self.chunks, talker.heads, talker.head_dim + CHUNK_STATS), real)
        self.row_chunk = self._new("row_chunk", (self.chunks, 8), whole)
        pairs = (2, predictor.kv_heads, groups, predictor.head_dim)
        self.predictor_kv = self._new("predictor_kv", (predictor.layers, self.streams, *pairs), STORED)
        self.predictor_logits = self._new("predictor_logits", (self.streams, groups - 1, predictor.vocab), real)
        self.picked = self._new("picked", (self.streams, groups), whole)
        self.codes = self._new("codes", (self.streams, groups + 1), whole, host=True)

    def _operand(self, name: str, rows: int, columns: int) -> Tensor:
        return self._new(name, (columns // KBLOCK, rows, KBLOCK), OPERAND)


class Workspace(GuardedBuffers):
    """Buffers of one decoder, zeroed. Names are those of ``csrc/params.cuh``.

    Args:
        shape: the kernel's sizes.
        slots: streams that have state.
        pages: key/value pages that these streams share, until :meth:`grow`.
        device: where the buffers lie; ``codes`` and ``status`` lie in host memory, which a GPU sees as well.
    """

    def __init__(self, shape: KernelShape, slots: int, pages: int, device: torch.device) -> None:
        super().__init__(device)
        self.shape = shape
        self.slots = slots
        self.pages = pages
        talker, predictor, groups = shape.talker, shape.predictor, shape.code_groups
        real, whole = torch.float32, torch.int32
        pairs = (2, talker.kv_heads, PAGE, talker.head_dim)
        self.talker_kv = self._new("talker_kv", (talker.layers, pages, *pairs), STORED)
        pairs = (2, predictor.kv_heads, PAGE, predictor.head_dim)
        self.predictor_kv = self._new("predictor_kv", (predictor.layers, ROWS, *pairs), STORED)
        self.text = self._new("text", (ROWS, talker.hidden), real)
        self.x = self._new("x", (ROWS * shape.largest("hidden"),), real)
        self.qkv = self._new("qkv", (ROWS * shape.largest("qkv"),), real)
        self.attention = self._new("attention", (ROWS * shape.largest("attention"),), real)
        self.activation = self._new("activation", (ROWS * shape.largest("intermediate"),), real)
        self.chosen = self._new("chosen", (ROWS, QUAD), real)
        partials = ROWS * talker.heads * shape.max_chunks * (talker.head_dim + CHUNK_STATS)
        self.partial = self._new("partial", (partials,), real)
        self.arrivals = self._new("arrivals", (ROWS * shape.largest("kv_heads"),), whole)
        self.hidden = self._new("hidden", (slots, talker.hidden), real)
        self.projected = self._new("projected", (ROWS, predictor.hidden), real)
        self.pending = self._new("pending", (slots, talker.vocab), real)
        self.predictor_logits = self._new("predictor_logits", (ROWS, groups - 1, predictor.vocab), real)
        stream = Structures(shape).stream
        self.stream = self._new("stream", (slots, ctypes.sizeof(stream) // whole.itemsize), whole)
        self._fields = [_words(field) for field in (stream.sampling, stream.seen, stream.pages)]
        self.sampling, self.seen, self.page_table = (self.stream[:, words] for words in self._fields)
        self.barrier = self._new("barrier", (BarrierWord.PROGRESS + shape.blocks,), whole)
        self.codes = self._new("codes", (ROWS, groups + 1), whole, host=True)
        self.status = self._new("status", (len(StatusWord),), whole, host=True)
        self.wide = WideWorkspace(shape, slots, device)
        """Buffers for the rows of wide launches."""

    def grow(self, pages: int) -> None:
        """Have this many key/value pages, more than now, in stream order. What a page holds stays under its number, in
        another tensor: ``talker_kv`` is replaced. Damage to its guards is taken along.

        Raises:
            torch.cuda.OutOfMemoryError: the GPU cannot hold both tensors; nothing has changed.
        """
        old, old_raw = self.talker_kv, self._raw["talker_kv"]
        layers, _, *pairs = old.shape
        self.talker_kv = self._new("talker_kv", (layers, pages, *pairs), old.dtype)
        self.talker_kv[:, : self.pages] = old
        for guard in (slice(GUARD_BYTES), slice(-GUARD_BYTES, None)):
            self._raw["talker_kv"][guard] = old_raw[guard]
        self.pages = pages

    def check_guards(self) -> None:
        """Look at every guard.

        Raises:
            GuardError: with the names of the buffers whose guards were overwritten.
        """
        damaged = self.damaged() + [f"wide {name}" for name in self.wide.damaged()]
        if damaged:
            raise GuardError(f"something wrote outside of: {', '.join(damaged)}")

    def copy_from(self, other: Self) -> None:
        """Take over the contents of every buffer of an equally sized workspace."""
        super().copy_from(other)
        self.wide.copy_from(other.wide)

    def assign(self, streams: Sequence[Assignment]) -> None:
        """Give slots to streams."""
        sampling, seen, pages = self._fields
        words = np.zeros((len(streams), self.stream.shape[1] + 1), np.int32)  # one piece, for one copy
        for record, one in zip(words, streams, strict=True):
            record[-1] = one.slot
            record[sampling] = np.frombuffer(memoryview(one.sampling), np.int32)
            if one.history:
                codes = np.asarray(one.history, np.uint32)
                np.bitwise_or.at(record[seen].view(np.uint32), codes // 32, np.uint32(1) << codes % 32)
            record[pages][: len(one.pages)] = one.pages
        if len(streams) == 1:  # half as long as below
            send(torch.from_numpy(words[0, :-1]), self.device, into=self.stream[streams[0].slot])
            return
        sent = send(torch.from_numpy(words), self.device)
        self.stream[sent[:, -1]] = sent[:, :-1]

    def forget_results(self) -> None:
        """Clear what phases handed over, so that no tag of a launch long ago is taken for a new one."""
        for buffer in (self.x, self.qkv, self.attention, self.activation, self.chosen):
            buffer.zero_()

    def reset_after_abort(self) -> None:
        """Make counters and status ready for the next launch. The device must be idle."""
        self.barrier.zero_()
        self.arrivals.zero_()
        self.status.zero_()


def _words(field: Any) -> slice:
    """Return the words of a structure that a member takes."""
    begin, end = field.offset // 4, (field.offset + field.size) // 4
    return slice(begin, end)
