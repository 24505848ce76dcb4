"""Everything that the kernel writes, and the per-stream state it reads: one guarded buffer each."""

import ctypes
from math import prod

import torch
from torch import Tensor

from megatalker_kernels.constants import CHUNK_STATS, PAGE, QUAD, ROWS, STORED, BarrierWord, StatusWord
from megatalker_kernels.errors import GuardError
from megatalker_kernels.params import Sampling
from megatalker_kernels.shapes import KernelShape

GUARD_BYTES = 512
GUARD = 0xA5


class Workspace:
    """Buffers of one decoder, zeroed. Names are those of ``csrc/params.cuh``.

    Before and behind each buffer lies a guard that nobody may write; :meth:`check_guards` looks at them.

    Args:
        shape: the kernel's sizes.
        slots: streams that have state.
        pages: key/value pages that these streams share, until :meth:`grow`.
        device: where the buffers lie; ``codes`` and ``status`` lie in host memory, which a GPU sees as well.
    """

    def __init__(self, shape: KernelShape, slots: int, pages: int, device: torch.device) -> None:
        self.shape = shape
        self.slots = slots
        self.pages = pages
        self.device = device
        self._raw: dict[str, Tensor] = {}
        talker, predictor, groups = shape.talker, shape.predictor, shape.code_groups
        real, whole = torch.float32, torch.int32
        pairs = (2, talker.kv_heads, PAGE, talker.head_dim)
        self.talker_kv = self._new("talker_kv", (talker.layers, pages, *pairs), STORED)
        pairs = (2, predictor.kv_heads, PAGE, predictor.head_dim)
        self.predictor_kv = self._new("predictor_kv", (predictor.layers, ROWS, *pairs), STORED)
        self.page_table = self._new("page_table", (slots, shape.max_pages), whole)
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
        self.seen = self._new("seen", (slots, talker.vocab // 32), whole)
        self.sampling = self._new("sampling", (slots, ctypes.sizeof(Sampling)), torch.uint8)
        self.barrier = self._new("barrier", (BarrierWord.PROGRESS + shape.blocks,), whole)
        self.codes = self._new("codes", (ROWS, groups + 1), whole, host=True)
        self.status = self._new("status", (len(StatusWord),), whole, host=True)

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

    def buffers(self) -> dict[str, Tensor]:
        """All buffers by name."""
        return {name: getattr(self, name) for name in self._raw}

    def check_guards(self) -> None:
        """Look at every guard.

        Raises:
            GuardError: with the names of the buffers that something wrote next to.
        """
        damaged = []
        for name, buffer in self.buffers().items():
            raw, end = self._raw[name], GUARD_BYTES + buffer.numel() * buffer.element_size()
            if not bool((raw[:GUARD_BYTES] == GUARD).all() and (raw[end:] == GUARD).all()):
                damaged.append(name)
        if damaged:
            raise GuardError(f"something wrote outside of: {', '.join(damaged)}")

    def copy_from(self, other: "Workspace") -> None:
        """Take over the contents of every buffer of an equally sized workspace."""
        for name, raw in self._raw.items():
            raw.copy_(other._raw[name])

    def assign(self, slot: int, sampling: Sampling, history: tuple[int, ...] = ()) -> None:
        """Give a slot to a stream whose emitted first codes are ``history``."""
        self.sampling[slot] = torch.frombuffer(bytearray(sampling), dtype=torch.uint8).to(self.device)
        words = [0] * self.seen.shape[1]
        for code in history:
            words[code // 32] |= 1 << (code % 32)
        signed = [word - 2**32 if word >= 2**31 else word for word in words]
        self.seen[slot] = torch.tensor(signed, dtype=torch.int32, device=self.device)

    def forget_results(self) -> None:
        """Clear what phases handed over, so that no tag of a launch long ago is taken for a new one."""
        for buffer in (self.x, self.qkv, self.attention, self.activation, self.chosen):
            buffer.zero_()

    def reset_after_abort(self) -> None:
        """Make counters and status ready for the next launch. The device must be idle."""
        self.barrier.zero_()
        self.arrivals.zero_()
        self.status.zero_()
