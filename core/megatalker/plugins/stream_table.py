"""Which stream holds which row, how far it has come, and whether a request or step may run at all.

Shared by the talker decoders of this distribution. Everything is checked before anything changes, and every message
says what is wrong, what was expected and what to do.
"""

import heapq
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from megatalker.checkpoint.config import ModelConfig
from megatalker.errors import CapacityError, InvalidRequestError
from megatalker.interfaces import DecodeStep, StreamHandle, StreamRequest


@dataclass(slots=True)
class _Entry:
    row: int
    positions: int
    ended: bool = False


class StreamTable:
    """Streams of one decoder: handle -> row, position, ended or not.

    Rows are ``0 .. max_streams - 1``; the lowest free one is taken first. Handles are never reused.

    Args:
        config: the checkpoint's shapes and ids.
        max_streams: rows, and the largest batch of one ``decode`` call.
        max_positions: prompt rows plus frames of one stream.
    """

    def __init__(self, config: ModelConfig, *, max_streams: int, max_positions: int) -> None:
        self._config = config
        self.max_streams = max_streams
        self.max_positions = max_positions
        self._free = list(range(max_streams))
        self._entries: dict[StreamHandle, _Entry] = {}
        self._issued = 0

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def admit(self, request: StreamRequest) -> Iterator[tuple[StreamHandle, int]]:
        """Check ``request`` and hold a row for it: ``with table.admit(request) as (stream, row): ...prefill...``.

        When the block raises, the row is free again.

        Raises:
            InvalidRequestError: ``embeds`` is not ``[T >= 2, hidden_size]`` finite floating point, or a history id lies
                outside the vocabulary.
            CapacityError: no free row, or the prompt alone exceeds ``max_positions``.
        """
        self._check_embeds(request.embeds)
        _check_ids("history", request.history, self._config.talker.vocab_size)
        rows = request.embeds.shape[0]
        if rows > self.max_positions:
            raise CapacityError(
                f"the prompt has {rows} rows, this decoder holds {self.max_positions} positions per stream; "
                "shorten the text or reference audio, or raise the backend's max_positions"
            )
        if not self._free:
            raise CapacityError(
                f"all {self.max_streams} streams of this decoder are in use; "
                "release one, or raise the backend's max_streams"
            )
        self._issued += 1
        stream = StreamHandle(self._issued)
        row = heapq.heappop(self._free)
        self._entries[stream] = _Entry(row, rows)
        try:
            yield stream, row
        except BaseException:
            self.release(stream)
            raise

    def check_steps(self, steps: Sequence[DecodeStep]) -> list[int]:
        """Check one ``decode`` call; returns the row of each step.

        Text rows must be finite; those on an accelerator are taken on trust, for looking would wait for the device.

        Raises:
            InvalidRequestError, CapacityError: as :meth:`megatalker.interfaces.TalkerDecoder.decode`.
        """
        if len(steps) > self.max_streams:
            raise CapacityError(
                f"{len(steps)} steps in one call, this decoder takes {self.max_streams}; split the call"
            )
        rows = []
        seen = set()
        for step in steps:
            entry = self._entry(step.stream)
            if step.stream in seen:
                raise InvalidRequestError(f"stream {step.stream} stands twice in one call; pass each stream once")
            seen.add(step.stream)
            self._check_step(step, entry)
            rows.append(entry.row)
        return rows

    def row(self, stream: StreamHandle) -> int:
        """The row this stream holds; raises ``InvalidRequestError`` for an unknown or released stream."""
        return self._entry(stream).row

    def positions(self, stream: StreamHandle) -> int:
        """Prompt rows plus frames so far: the position of this stream's next talker step."""
        return self._entry(stream).positions

    def advance(self, stream: StreamHandle) -> None:
        """The stream emitted a frame and used one position for it."""
        self._entry(stream).positions += 1

    def end(self, stream: StreamHandle) -> None:
        """The stream chose end-of-speech: it takes no further step, and keeps its row until released."""
        self._entry(stream).ended = True

    def release(self, stream: StreamHandle) -> int:
        """Free the stream's row and return it.

        Raises:
            InvalidRequestError: the stream is unknown or was released before.
        """
        row = self._entry(stream).row
        del self._entries[stream]
        heapq.heappush(self._free, row)
        return row

    def _entry(self, stream: StreamHandle) -> _Entry:
        entry = self._entries.get(stream)
        if entry is not None:
            return entry
        if isinstance(stream, int) and 0 < stream <= self._issued:
            raise InvalidRequestError(f"stream {stream} was released; prefill a new one")
        raise InvalidRequestError(
            f"stream {stream!r} is unknown to this decoder; pass a handle that its prefill returned"
        )

    def _check_embeds(self, embeds: Tensor) -> None:
        hidden = self._config.talker.hidden_size
        if embeds.ndim != 2 or embeds.shape[0] < 2 or embeds.shape[1] != hidden or not embeds.is_floating_point():
            raise InvalidRequestError(
                f"embeds is {_describe(embeds)}, expected floating point [T >= 2, {hidden}]: the rows of one prompt"
            )
        if not bool(torch.isfinite(embeds).all()):
            raise InvalidRequestError("embeds holds NaN or infinity, expected finite values; check the prompt's source")

    def _check_step(self, step: DecodeStep, entry: _Entry) -> None:
        if entry.ended:
            raise InvalidRequestError(f"stream {step.stream} has ended by itself; only release it")
        hidden = self._config.talker.hidden_size
        if step.text.ndim != 1 or step.text.shape[0] != hidden or not step.text.is_floating_point():
            raise InvalidRequestError(
                f"the text row of stream {step.stream} is {_describe(step.text)}, expected floating point [{hidden}]: "
                "one row of the prompt's trailing rows, or its pad row"
            )
        if step.text.device.type == "cpu" and not bool(torch.isfinite(step.text).all()):
            raise InvalidRequestError(
                f"the text row of stream {step.stream} holds NaN or infinity, expected finite values; check its source"
            )
        if step.forced is not None:
            self._check_forced(step.stream, step.forced)
        if entry.positions >= self.max_positions:
            raise CapacityError(
                f"stream {step.stream} has used its {self.max_positions} positions; "
                "end it, or raise the backend's max_positions"
            )

    def _check_forced(self, stream: StreamHandle, forced: Sequence[int]) -> None:
        groups = self._config.num_code_groups
        if len(forced) != groups:
            raise InvalidRequestError(
                f"stream {stream}: {len(forced)} forced codes, expected {groups}, one for each code group"
            )
        _check_ids(f"stream {stream}: the first forced code", forced[:1], self._config.talker.vocab_size)
        _check_ids(f"stream {stream}: forced codes after the first", forced[1:], self._config.predictor.vocab_size)


def _check_ids(what: str, ids: Sequence[int], vocab_size: int) -> None:
    for value in ids:
        try:
            inside = 0 <= operator.index(value) < vocab_size
        except TypeError:
            inside = False
        if not inside:
            raise InvalidRequestError(
                f"{what}: id {value!r} lies outside the vocabulary, expected 0 to {vocab_size - 1}"
            )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
