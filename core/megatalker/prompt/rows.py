"""Rows for prompts, looked up in the memory-mapped checkpoint and projected on the device."""

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn import functional as F

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError

_BLOCK = 8
"""Rows of each projection of text that arrives bit by bit; see :meth:`PromptRows.project_split`."""


class PromptRows:
    """The embedding tables of one checkpoint, as rows of the talker's width.

    Only the text projection (about 13 MB at 0.6B in 16 bit) lives on the device: the tables stay in the file, and a
    lookup touches just its own rows.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._text_table = checkpoint.tensor("talker.model.text_embedding.weight")
        self._first_table = checkpoint.tensor("talker.model.codec_embedding.weight")
        self._rest_tables = [
            checkpoint.tensor(f"talker.code_predictor.model.codec_embedding.{index}.weight")
            for index in range(checkpoint.config.num_code_groups - 1)
        ]
        self._codebook_size = checkpoint.config.predictor.vocab_size
        layer = "talker.text_projection.linear_fc"
        self._weight_1, self._bias_1, self._weight_2, self._bias_2 = (
            self._send(checkpoint.tensor(f"{layer}{name}")) for name in ("1.weight", "1.bias", "2.weight", "2.bias")
        )
        self._used = self._equal_rows()

    def text(self, ids: Sequence[int]) -> Tensor:
        """:meth:`embed` and :meth:`project`: ``[n, H]``."""
        return self.project(self.embed(ids))

    def embed(self, ids: Sequence[int], *, into: Tensor | None = None) -> Tensor:
        """``[n, text width]``: rows of the text table, on the device.

        Args:
            ids: of the text vocabulary.
            into: what an earlier call returned, to be filled again.

        Raises:
            InvalidRequestError: an id outside the text vocabulary.
        """
        size = self._text_table.shape[0]
        for token in ids:
            if not 0 <= token < size:
                raise InvalidRequestError(
                    f"text id {token} is outside the text vocabulary of {size}; use this checkpoint's tokenizer"
                )
        rows = self._look_up(self._text_table, ids)
        return self._send(rows) if into is None else into.copy_(rows, non_blocking=True)

    def project(self, embedded: Tensor, calls: Sequence[int] | None = None) -> Tensor:
        """``[n, text width]`` -> ``[n, H]``.

        The last bits of a row may depend on how many rows share a call, because matrix libraries choose their kernel by
        shape. To equal the official prompt, group rows as the official code does.

        Args:
            embedded: rows of one text after another.
            calls: rows of each call; together n. ``None``: one call.
        """
        calls = [len(embedded)] if calls is None else list(calls)
        hidden = _linear(embedded, self._weight_1, self._bias_1, calls)
        # a CPU computes the last numbers of a call one by one, by another exponential than those before
        for some in torch.split(hidden, calls) if self._device.type == "cpu" else (hidden,):
            F.silu(some, inplace=True)
        return _linear(hidden, self._weight_2, self._bias_2, calls)

    def project_split(self, embedded: Tensor) -> Tensor:
        """Project rows like :meth:`project`, but a row's bits depend on its id only, however the text was split.

        Every call to the matrix library has the same shape: a padded block, of which those rows are used that the
        library computes alike. The rows equal those of :meth:`project` to the last bit wherever the library uses one
        kernel for both shapes, and to float32 rounding elsewhere.
        """
        blocks, used = -(-len(embedded) // self._used), self._used
        rows = F.pad(embedded, (0, 0, 0, blocks * used - len(embedded))).view(blocks, used, embedded.shape[1])
        padded = F.pad(rows, (0, 0, 0, _BLOCK - used)).flatten(0, 1)
        projected = self.project(padded, [_BLOCK] * blocks).view(blocks, _BLOCK, len(self._bias_2))
        return projected[:, :used].flatten(0, 1)[: len(embedded)]

    def _equal_rows(self) -> int:
        """Return how many rows of a block, the first included, get the bits of the first: with AVX2, MKL computes six
        rows by one kernel, and two by another.
        """
        row = torch.linspace(-1.0, 1.0, self._weight_1.shape[1], device=self._device).to(self._dtype)
        first, *others = self.project(row.repeat(_BLOCK, 1))
        return 1 + sum(1 for _ in takewhile(lambda other: torch.equal(other, first), others))

    def codec(self, ids: Sequence[int]) -> Tensor:
        """Rows of the talker's own codec table (codes 0 and the special ids): ``[n, H]``."""
        return self._send(self._look_up(self._first_table, ids))

    def frames(self, codes: Tensor) -> Tensor:
        """Sum of each frame's code embeddings: ``[N, code groups]`` integer -> ``[N, H]``, added in the official order.

        Raises:
            InvalidRequestError: another shape or type, or a code outside the codebook.
        """
        groups = len(self._rest_tables) + 1
        if codes.ndim != 2 or codes.shape[1] != groups or codes.is_floating_point():
            raise InvalidRequestError(
                f"codes have shape {list(codes.shape)} and type {codes.dtype}, "
                f"expected integers of shape [frames, {groups}]"
            )
        codes = codes.to(device="cpu", dtype=torch.long)
        if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) >= self._codebook_size):
            raise InvalidRequestError(
                f"codes reach from {int(codes.min())} to {int(codes.max())}, expected 0 to {self._codebook_size - 1}"
            )
        tables = (self._first_table, *self._rest_tables)
        rows = self._room(self._first_table, len(codes), groups)
        for group, table in enumerate(tables):
            rows[:, group] = table.index_select(0, codes[:, group])
        return self._send(rows).sum(1)

    def _look_up(self, table: Tensor, ids: Sequence[int]) -> Tensor:
        rows = self._room(table, len(ids))
        # 20 times as fast as indexing with a tensor
        torch.index_select(table, 0, torch.tensor(ids, dtype=torch.long), out=rows)
        return rows

    def _room(self, table: Tensor, *rows: int) -> Tensor:
        """Return a host buffer that a GPU can copy from without waiting for its running work."""
        return torch.empty(*rows, table.shape[1], dtype=table.dtype, pin_memory=self._device.type == "cuda")

    def _send(self, rows: Tensor) -> Tensor:
        return rows.to(self._device, non_blocking=True).to(self._dtype)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor, calls: list[int]) -> Tensor:
    """Compute ``rows @ weight.T + bias``, with one call of the official layer's function for each of ``calls``."""
    products, turned = rows.new_empty(len(rows), len(bias)), weight.t()
    for some, into in zip(torch.split(rows, calls), torch.split(products, calls), strict=True):
        torch.addmm(bias, some, turned, out=into)
    return products
