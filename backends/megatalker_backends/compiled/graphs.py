"""CUDA graphs of a frame and of prompts: one launch instead of hundreds.

A frame is two graphs. The first ends with the codes, the second is the talker step; the host waits for the codes only,
while the talker step still runs.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from megatalker.plugins.graphs import GraphCapture
from megatalker_backends.compiled.model import Codes, Model, Units
from megatalker_backends.compiled.runner import BatchFrames, DirectRunner, Share, idle_shares, pack, span_length, unpack
from megatalker_backends.sizes import next_size

logger = logging.getLogger(__name__)

PROMPT_SIZES = (32, 64, 128, 256, 512)
"""Prompts are padded to the next of these; longer ones run as plain operations."""
SHORTEST_SPAN = 256
"""The looked-at part of the cache is this long, or a multiple by a power of two, or the whole."""


@dataclass(frozen=True, slots=True)
class _FrameGraphs:
    """Graphs for one batch size, with the fixed tensors that they read and write."""

    numbers: Tensor
    """``[size, 2 + groups]`` int64, on the device."""
    host_numbers: Tensor
    """The same, page-locked on the host."""
    text: Tensor
    """``[size, hidden_size]`` float32"""
    codes: Codes
    host_codes: Tensor
    """``[size, groups]`` int64, page-locked on the host."""
    predict: Callable[[], Codes]
    """Replay the graph that writes ``codes``."""
    talk: Mapping[int, Callable[[], None]]
    """Replay the graph of the talker step, by span length, ascending."""


@dataclass(frozen=True, slots=True)
class _PromptGraph:
    row: Tensor
    last: Tensor
    embeds: Tensor
    """``[size, hidden_size]`` float32"""
    run: Callable[[], Tensor | None]


class GraphRunner:
    """Replays graphs captured at construction.

    Args:
        model: on a CUDA device. Capturing changes its scratch row only.
        units: compiled or plain units for each batch size to capture; the largest is the largest batch accepted.
    """

    def __init__(self, model: Model, units: Mapping[int, Units]) -> None:
        self._model = model
        self._direct = DirectRunner(model)
        with torch.cuda.device(model.device):
            self._capture = GraphCapture(model.device)
            self._codes_ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            prompts = [size for size in PROMPT_SIZES if size <= model.cache_positions]
            total = len(units) + len(prompts)
            self._frames = {}
            for done, size in enumerate(sorted(units), 1):
                logger.info("compiled: capturing %d of %d: frames of %d streams", done, total, size)
                self._frames[size] = self._capture_frame(size, units[size])
            self._prompts = {}
            for done, size in enumerate(prompts, len(units) + 1):
                logger.info("compiled: capturing %d of %d: prompts of %d rows", done, total, size)
                self._prompts[size] = self._capture_prompt(size)

    def prefill(self, row: int, embeds: Tensor) -> None:
        length = len(embeds)
        size = next((size for size in self._prompts if size >= length), None)
        if size is None:
            self._direct.prefill(row, embeds)
            return
        prompt = self._prompts[size]
        with torch.cuda.device(self._model.device):
            prompt.row.fill_(row)
            prompt.last.fill_(length - 1)
            prompt.embeds[:length] = embeds
            prompt.embeds[length:] = 0
            prompt.run()

    def begin(self, shares: Sequence[Share]) -> Callable[[], BatchFrames]:
        count, length = len(shares), span_length(shares)
        frame = self._frames[next_size(self._frames, count)]
        with torch.cuda.device(self._model.device):
            self._fill(frame, shares)
            frame.predict()
            frame.host_codes.copy_(frame.codes.codes, non_blocking=True)
            self._codes_ready.record()
            frame.talk[next_size(frame.talk, length)]()

        def take() -> BatchFrames:
            self._codes_ready.synchronize()
            codes = frame.host_codes[:count].tolist()
            return BatchFrames(codes, frame.codes.first_logits[:count], frame.codes.rest_logits[:count])

        return take

    def _fill(self, frame: _FrameGraphs, shares: Sequence[Share]) -> None:
        # The host's copy is free to change: the last call waited for codes, which are computed after it has been read.
        frame.host_numbers.copy_(pack(self._model, shares, len(frame.host_numbers)))
        frame.numbers.copy_(frame.host_numbers, non_blocking=True)
        for place, share in enumerate(shares):
            frame.text[place].copy_(share.text, non_blocking=True)

    def _capture_frame(self, size: int, units: Units) -> _FrameGraphs:
        model = self._model
        numbers = pack(model, idle_shares(model, size), size).to(model.device)
        text = torch.zeros(size, model.config.talker.hidden_size, device=model.device)

        def predict() -> Codes:
            inputs = unpack(numbers, text)
            return model.predict(units, inputs.rows, inputs.forced)

        replay_predict = self._capture(predict)
        codes = replay_predict()

        def talk(span: int) -> None:
            inputs = unpack(numbers, text)
            model.talk(units, inputs.rows, inputs.positions, codes.codes, inputs.text, span)

        return _FrameGraphs(
            numbers=numbers,
            host_numbers=numbers.cpu().pin_memory(),
            text=text,
            codes=codes,
            host_codes=codes.codes.cpu().pin_memory(),
            predict=replay_predict,
            talk={span: self._capture(partial(talk, span)) for span in self._spans()},
        )

    def _spans(self) -> list[int]:
        spans, whole = [SHORTEST_SPAN], self._model.cache_positions
        while spans[-1] < whole:
            spans.append(2 * spans[-1])
        return [min(span, whole) for span in spans]

    def _capture_prompt(self, size: int) -> _PromptGraph:
        model = self._model
        row = torch.full((1,), model.scratch_row, device=model.device)
        last = torch.full((1,), size - 1, device=model.device)
        embeds = torch.zeros(size, model.config.talker.hidden_size, device=model.device)
        return _PromptGraph(row, last, embeds, self._capture(partial(model.prefill, row, embeds, last)))
