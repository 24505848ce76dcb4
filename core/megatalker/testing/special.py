"""Special models: random checkpoints whose tensors are changed so that one kind of mistake cannot hide.

Pass a change to :func:`~megatalker.testing.random_checkpoint.write_checkpoint`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from megatalker.testing.recipe import TINY
from megatalker.testing.weights import Array

Change = Callable[[str, Array], None]

_RESIDUAL = re.compile(r"talker\..*\.(o_proj|down_proj)\.weight$")
_EMBEDDING = re.compile(r"talker\.(code_predictor\.)?model\.codec_embedding\.")
_PREDICTOR_HEAD = re.compile(r"talker\.code_predictor\.lm_head\.(\d+)\.weight$")


_COLUMNS = re.compile(r"talker\..*\.layers\.\d+\.(self_attn\.[qkv]|mlp\.(gate|up))_proj\.weight$")
_BEFORE_COLUMNS = re.compile(r"talker\..*\.layers\.\d+\.(input|post_attention)_layernorm\.weight$")
UNEVEN_COLUMNS = 64


def uneven(name: str, values: Array) -> None:
    """Double every second group of :data:`UNEVEN_COLUMNS` columns, and halve the weights of the norm that feeds them:
    the model computes what it did, but its groups of weights need scales of their own.
    """
    if _COLUMNS.match(name) or _BEFORE_COLUMNS.match(name):
        factor = 2.0 if _COLUMNS.match(name) else 0.5
        values[..., np.arange(values.shape[-1]) // UNEVEN_COLUMNS % 2 == 1] *= factor


def unchanged(name: str, values: Array) -> None:
    """The random model itself."""


class OpenModel:
    """A model of the sizes of ``TINY`` through which the caller sees: its layers add nothing, so the talker's logits
    depend on its last input row alone, and the predictor's on the code before. The caller says what they are.

    Each logit is a single product, so equal ones are equal in any arithmetic.
    """

    SINGLE = (*range(36), 64, 100, 126, 127)
    """Codes whose logits can be chosen one by one."""
    END = TINY.codebook_size + 102
    FLOOR = -30.0
    """Logit of all ids that are not spoken of."""

    _HIDDEN, _VOCAB, _CODES = TINY.talker.hidden, TINY.codebook_size + 1024, TINY.codebook_size
    _SPOKEN = 48
    """Channels from here on hold the embeddings of codes; those before, logits of code 0."""
    _HEAD, _SCALE, _EMBEDDED = 64.0, 64.0, 2.0**-4
    _CHANNEL = np.full(_VOCAB, len(SINGLE) + 3)
    """The channel that the logit of an id is read from: channel 0 only keeps the row's size constant."""
    _CHANNEL[:_CODES] = len(SINGLE) + 1
    _CHANNEL[list(SINGLE)] = np.arange(1, len(SINGLE) + 1)
    _CHANNEL[END] = len(SINGLE) + 2

    @classmethod
    def change(cls, name: str, values: Array) -> None:
        """Change one tensor; a hook of :func:`~megatalker.testing.random_checkpoint.write_checkpoint`."""
        if _RESIDUAL.match(name):
            values[:] = 0
        elif name in ("talker.model.norm.weight", "talker.code_predictor.model.norm.weight"):
            values[:] = 1
        elif name == "talker.codec_head.weight":
            values[:] = 0
            values[np.arange(cls._VOCAB), cls._CHANNEL] = cls._HEAD
        elif _EMBEDDING.match(name):
            values[:, : cls._SPOKEN] = 0
            values[:, cls._SPOKEN :] = np.where(values[:, cls._SPOKEN :] < 0, -cls._EMBEDDED, cls._EMBEDDED)
        elif head := _PREDICTOR_HEAD.match(name):
            ids = np.arange(cls._CODES)
            values[:] = 0
            # Steps of 1/8 between logits, in another order in each codebook, and some ties.
            values[ids, cls._SPOKEN + ids % 16] = ((ids * 37 + 11 * int(head[1])) % 97 + 1) / 16

    def __init__(self, tensor: Callable[[str], NDArray[np.float32]]) -> None:
        """Read a written model; ``tensor`` gives a tensor by its official name."""
        groups = range(TINY.num_code_groups - 1)
        first = tensor("talker.model.codec_embedding.weight")
        rest = [tensor(f"talker.code_predictor.model.codec_embedding.{index}.weight") for index in groups]
        self._tables = [first, *rest]
        self._heads = [tensor(f"talker.code_predictor.lm_head.{index}.weight") for index in groups]

    def row(self, logits: Mapping[int, float], *, others: float = FLOOR, special: float = FLOOR) -> Array:
        """The text row ``[hidden_size]`` that makes these the logits of code 0 of the next frame.

        Args:
            logits: of ids in :data:`SINGLE` and of :data:`END`; :data:`FLOOR` for those left out.
            others: of all other codes.
            special: of all ids above the codes but :data:`END`.
        """
        channels = np.full(self._HIDDEN, 0.0)
        channels[1 : len(self.SINGLE) + 4] = self.FLOOR
        channels[len(self.SINGLE) + 1], channels[len(self.SINGLE) + 3] = others, special
        for code, logit in logits.items():
            channels[self._CHANNEL[code]] = logit
        channels *= self._SCALE / self._HEAD
        channels[0] = sqrt(self._HIDDEN * self._SCALE**2 - np.square(channels).sum())
        return channels.astype(np.float32)

    def talker_logits(self, row: Array, codes: Sequence[int] | None) -> Array:
        """Logits of code 0 after this text row, fed with the codes of its frame; ``None``: it ended the prompt."""
        fed = row.astype(np.float64)
        if codes is not None:
            fed = fed + sum(table[code].astype(np.float64) for table, code in zip(self._tables, codes, strict=True))
        return np.asarray(self._HEAD * self._normed(fed)[self._CHANNEL], dtype=np.float32)

    def predictor_logits(self, codebook: int, previous: int) -> Array:
        """Logits of this codebook (1 to 15), after this code in the one before."""
        return np.asarray(self._heads[codebook - 1] @ self._normed(self._tables[codebook - 1][previous]), np.float32)

    @staticmethod
    def _normed(row: NDArray[np.floating]) -> NDArray[np.float64]:
        exact = row.astype(np.float64)
        return np.asarray(exact / np.sqrt(np.square(exact).mean() + 1e-6))


_FAINT = 2.0**-10
_FAINT_ROWS = re.compile(
    r"talker\..*(o_proj|down_proj|q_proj|k_proj|small_to_mtp_projection|codec_embedding.*|linear_fc2)\.(weight|bias)$"
)
_LOUD = re.compile(r"talker\.(code_predictor\.)?model\.layers\.1\.self_attn\.[qk]_norm\.weight$")


def extreme(name: str, values: Array) -> None:
    """Faint activations, whose mean square is about the epsilon at every norm, and in one layer of each stack scores of
    attention whose exponentials exceed float32.
    """
    if _FAINT_ROWS.match(name):
        values *= np.float32(_FAINT)
    elif _LOUD.match(name):
        values *= 8
