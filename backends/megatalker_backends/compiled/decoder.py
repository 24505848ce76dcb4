"""The ``compiled`` talker decoder: rows and results around a runner."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import (
    DecodeStep,
    Frame,
    FrameLogits,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins.stream_table import StreamTable
from megatalker_backends.compiled.ahead import LaterUnits
from megatalker_backends.compiled.compilation import units_to_run, wants_compile
from megatalker_backends.compiled.graphs import GraphRunner
from megatalker_backends.compiled.memory import choose_positions
from megatalker_backends.compiled.model import PLAIN, Model, Units
from megatalker_backends.compiled.rounding import BITS, load_quantised, resolve_weights
from megatalker_backends.compiled.runner import BatchFrames, DirectRunner, FrameRunner, Share
from megatalker_backends.compiled.settings import MOST_STREAMS, CompiledSettings
from megatalker_backends.compiler import CompilerError, keeps_compiled_code
from megatalker_backends.sizes import sizes_up_to

if TYPE_CHECKING:
    from megatalker_backends.compiled.quantised.runner import QuantisedModel

CPU_BATCH = 4
"""Larger batches are split: on a CPU they gain little, and each size has to be compiled."""

CAPABILITIES = TalkerCapabilities(
    devices=frozenset({"cpu", "cuda", "mps"}),
    dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
    batch=True,
    forced_codes=True,
    seeded_sampling=True,
)


class CompiledDecoder(TalkerDecoder):
    """Our own talker and code predictor; see :mod:`megatalker_backends.compiled.model`.

    Frames run as plain torch operations until :meth:`warmup` has compiled and, on CUDA, captured them. That happens
    there and nowhere else, so no request ever waits for a compiler. An early warm-up on a CPU compiles for one stream;
    another process compiles for more, and :meth:`prepare` takes that from torch's cache. Until then larger batches run
    one stream after another, with the same codes.

    Raises:
        SettingsError: ``compile`` is ``on`` and there is no compiler; from :meth:`warmup`, too, where it fails. Or
            ``weights`` needs a processor, or a package that is not installed.
        CapacityError: the streams asked for do not fit into the memory of the GPU.
    """

    def __init__(self, checkpoint: Checkpoint, context: LoadContext[CompiledSettings]) -> None:
        settings = context.settings
        config = checkpoint.config
        self._streams = settings.max_streams or min(context.max_streams, MOST_STREAMS)
        positions = choose_positions(config.talker, settings, self._streams, context.device, context.dtype)
        self._settings = settings
        self._capabilities = replace(CAPABILITIES, max_streams=self._streams, max_positions=positions)
        self._table = StreamTable(self._streams)
        weights = resolve_weights(settings.weights, checkpoint, context.device, context.dtype)
        self._compile = weights not in BITS and wants_compile(settings.compile, context.device)
        self._model: Model | QuantisedModel
        self._runner: FrameRunner
        if weights in BITS:
            self._model = self._runner = load_quantised(checkpoint, weights, self._streams, positions)
            self._capabilities = replace(
                self._capabilities, batch=False, batch_invariant=True, weight_bits=BITS[weights]
            )
        else:
            dtype = context.dtype if weights is None else torch.bfloat16
            if dtype != context.dtype:
                self._capabilities = replace(self._capabilities, weight_bits=16)
            self._model = Model(
                checkpoint, max_streams=self._streams, max_positions=positions, device=context.device, dtype=dtype
            )
            self._runner = DirectRunner(self._model)
        self._warm, self._early, self._folder = False, context.early, checkpoint.folder
        self._units: dict[int, Units] = {}
        self._later: LaterUnits | None = None

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self._capabilities

    @torch.inference_mode()
    def warmup(self) -> None:
        if self._warm:
            return
        model = self._model
        if not isinstance(model, Model):
            if not self._table:  # else streams have touched it all
                model.touch()
            self._warm = True
            return
        sizes = _batch_sizes(self._streams, model.device)
        early = self._compile and self._early and model.device.type == "cpu" and keeps_compiled_code()
        sizes, later = (sizes[:1], sizes[1:]) if early else (sizes, [])
        units = units_to_run(self._settings.compile, model, sizes) if self._compile else {}
        if model.device.type == "cuda":
            self._runner = GraphRunner(model, units or dict.fromkeys(sizes, PLAIN))
        elif units:
            self._runner, self._units = DirectRunner(model, units), dict(units)
            for size in later:  # on a CPU one at most
                self._later = LaterUnits(model, self._folder, size)
        self._warm = True

    @torch.inference_mode()
    def prepare(self) -> str | None:
        if self._later is None:
            return None
        try:
            units = self._later.load()
        except CompilerError:
            self._stop_preparing()
            raise
        if units is None:
            return self._later.what
        self._units[self._later.size] = units
        self._runner = DirectRunner(self._later.model, self._units)
        self._stop_preparing()
        return None

    @torch.inference_mode()
    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        with self._table.admit(requests) as entries:
            for entry, request in zip(entries, requests, strict=True):
                self._model.sampler.assign(entry.row, request.sampling, request.history)
                self._runner.prefill(entry.row, request.embeds)
        return [entry.handle for entry in entries]

    @torch.inference_mode()
    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        entries = [self._table[step.stream] for step in steps]
        shares = [
            Share(entry.row, entry.positions, step.forced, step.text)
            for entry, step in zip(entries, steps, strict=True)
        ]
        take = self._runner.begin(shares)

        @torch.inference_mode()
        def finish() -> list[Frame]:
            outcome = take()
            logits = _frame_logits(outcome) if return_logits else [None] * len(steps)
            return [self._frame(*parts) for parts in zip(steps, outcome.codes, logits, strict=True)]

        return finish

    def release(self, stream: StreamHandle) -> None:
        self._table.release(stream)

    def close(self) -> None:
        self._stop_preparing()
        del self._runner, self._units, self._model

    def _stop_preparing(self) -> None:
        later, self._later = self._later, None
        if later is not None:
            later.stop()

    def _frame(self, step: DecodeStep, codes: list[int], logits: FrameLogits | None) -> Frame:
        if codes[0] != self._model.config.codec_eos_id:
            self._table[step.stream].advance()
            return Frame(step.stream, tuple(codes), logits)
        if logits is not None:
            logits = replace(logits, predictor=logits.predictor[:0])
        return Frame(step.stream, None, logits)


def _frame_logits(outcome: BatchFrames) -> list[FrameLogits]:
    first, rest = outcome.first_logits.clone(), outcome.rest_logits.clone()
    return [FrameLogits(*rows) for rows in zip(first, rest, strict=True)]


def _batch_sizes(most: int, device: torch.device) -> list[int]:
    """Batch sizes to compile or capture; others are padded to the next, or split on a CPU."""
    if device.type == "cpu":
        return sorted({1, min(most, CPU_BATCH)})
    return sizes_up_to(most)
