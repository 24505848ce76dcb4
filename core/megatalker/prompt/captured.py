"""A CUDA graph of the work for one prompt's text: one launch instead of fifteen."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

from torch import Tensor

from megatalker.prompt.plan import Layout
from megatalker.prompt.rows import PromptRows

LENGTHS = 128
"""Longest text that is captured, in tokens: a long sentence."""

Rows = tuple[Tensor, Tensor]
Body = Callable[[Layout, Tensor], Rows]
"""A function of a layout and the embedded text ``[n, text width]``. It returns the rows after a prompt's head, and the
trailing rows.
"""
Capture = Callable[[Callable[[], Rows]], Callable[[], Rows]]


class CapturedBodies:
    """Bodies of whole texts without reference codes, by layout and length.

    Args:
        rows: where texts are looked up.
        body: what is captured.
        capture: :class:`~megatalker.plugins.graphs.GraphCapture`.
    """

    def __init__(self, rows: PromptRows, body: Body, capture: Capture) -> None:
        self._rows = rows
        self._text = rows.embed([0] * LENGTHS)
        self._captured = {
            (layout, length): capture(partial(body, layout, self._text[:length]))
            for layout in get_args(Layout)
            for length in range(LENGTHS, 0, -1)  # smaller ones fit into the memory that the largest one took
        }

    def get(self, layout: Layout, ids: Sequence[int]) -> Rows | None:
        """The body of this text, until the next one is asked for; ``None``: texts of its length were not captured.

        Raises:
            InvalidRequestError: an id outside the text vocabulary.
        """
        captured = self._captured.get((layout, len(ids)))
        if captured is None:
            return None
        self._rows.embed(ids, into=self._text[: len(ids)])
        return captured()
