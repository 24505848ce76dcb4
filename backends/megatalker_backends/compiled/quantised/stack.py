"""Runs a written stack with ONNX Runtime over keys and values that lie in tensors of torch."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from megatalker.checkpoint.config import TransformerShape
from megatalker_backends.compiled.ops import rope_table
from megatalker_backends.compiled.quantised.graph import MODEL

CPU = "cpu", 0
FEWEST_POSITIONS = 256
"""A row's cache begins with this many positions, and doubles when its stream has come so far."""


class _Call(NamedTuple):
    """A bound call: memory that the session reads and writes."""

    binding: onnxruntime.IOBinding
    x: Tensor
    """``[1, T, hidden]`` float32"""
    y: Tensor
    """``[1, T, hidden]`` float32"""


class _Row(NamedTuple):
    """The state of one row, as large as its stream needs."""

    cache: Tensor
    """``[2 * layers, 1, kv_heads, positions, head_dim]`` float32: keys of a layer, then its values."""
    single: _Call
    """One position."""


class QuantisedStack:
    """One stack and the caches of its rows.

    Args:
        folder: with the files of :func:`~megatalker_backends.compiled.quantised.graph.write_stack`.
        shape: of the stack.
        positions: of each row, at most. Memory is taken as streams grow.
        threads: processor threads of one product.
    """

    def __init__(self, folder: Path, shape: TransformerShape, *, positions: int, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads wait awake for the next node of a call, and let torch have the cores after it.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = onnxruntime.InferenceSession(folder / MODEL, options, providers=["CPUExecutionProvider"])
        self._shape, self._positions = shape, positions
        cos, sin = rope_table(positions, shape.head_dim, shape.rope_theta, torch.device("cpu"))
        half = shape.head_dim // 2
        self._angles = {"cos": cos[:, :half].contiguous(), "sin": sin[:, :half].contiguous()}
        self._last, self._total = torch.zeros(1, dtype=torch.int32), torch.zeros((), dtype=torch.int32)
        self._rows: dict[int, _Row] = {}

    def run(self, row: int, position: int, x: Tensor) -> Tensor:
        """Run consecutive positions of a row, and write its keys and values.

        Args:
            row: of the cache.
            position: of the first; either 0 or, for a single position, any.
            x: ``[T, hidden]`` of any float type.

        Returns:
            ``[T, hidden]`` float32 behind the last norm; for a single position valid until the row's next call.
        """
        length = len(x)
        state = self._with_room(row, position, position + length)
        call = state.single if length == 1 else self._bind(state.cache, length)
        call.x[0] = x
        self._last.fill_(position + length - 1)
        self._total.fill_(position + length)
        self._session.run_with_iobinding(call.binding)
        return call.y[0]

    def _with_room(self, row: int, written: int, needed: int) -> _Row:
        """The row's state with at least ``needed`` positions, of which ``written`` are kept."""
        state = self._rows.get(row)
        if state is not None and needed <= (room := state.cache.shape[3]) and (written or room <= FEWEST_POSITIONS):
            return state
        shape = self._shape
        room = min(max(FEWEST_POSITIONS, 1 << (needed - 1).bit_length()), self._positions)
        cache = torch.zeros(2 * shape.num_layers, 1, shape.num_kv_heads, room, shape.head_dim)
        if written:
            assert state is not None
            cache[:, :, :, :written] = state.cache[:, :, :, :written]
        self._rows[row] = _Row(cache, self._bind(cache, 1))
        return self._rows[row]

    def _bind(self, cache: Tensor, length: int) -> _Call:
        x, y = torch.zeros(2, 1, length, self._shape.hidden_size).unbind()
        binding = self._session.io_binding()
        inputs = {"x": x, **self._angles}
        for place, lent in enumerate(cache):
            name = f"{('keys', 'values')[place % 2]}.{place // 2}"
            inputs[name] = lent
            binding.bind_output(f"new_{name}", *CPU, np.float32, lent.shape, lent.data_ptr())
        for name, tensor in inputs.items():
            binding.bind_input(name, *CPU, np.float32, tensor.shape, tensor.data_ptr())
        for name, number in (("last", self._last), ("total", self._total)):
            binding.bind_input(name, *CPU, np.int32, number.shape, number.data_ptr())
        binding.bind_output("y", *CPU, np.float32, y.shape, y.data_ptr())
        return _Call(binding, x, y)
