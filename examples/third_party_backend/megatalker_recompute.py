"""A talker backend without a cache: each frame runs all rows of its stream through the official talker again."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model
from megatalker.errors import CapacityError, InvalidRequestError, UnsupportedError
from megatalker.interfaces import (
    AVAILABLE,
    Capabilities,
    DecodeStep,
    Frame,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerDecoder,
)
from megatalker.plugins import hookimpl
from megatalker.sampling import CodeVocabulary, SamplerRows

STREAMS, POSITIONS = 4, 2048
CAPABILITIES = Capabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({torch.float32}),
    max_streams=STREAMS,
    max_positions=POSITIONS,
)


class RecomputeDecoder(TalkerDecoder):
    """A stream is nothing but its rows ``[positions, hidden_size]`` and a slot of the sampler."""

    capabilities = CAPABILITIES

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        self._config, self._device = checkpoint.config, context.device
        self._talker = load_official_model(checkpoint, context.device, context.dtype).model.talker
        self._sampler = SamplerRows(STREAMS, CodeVocabulary.of(self._config), context.device)
        self._handles, self._slots = itertools.count(1), list(range(STREAMS))
        self._streams: dict[StreamHandle, tuple[int, Tensor]] = {}
        self._ended: set[StreamHandle] = set()

    def prefill(self, request: StreamRequest) -> StreamHandle:
        self._check_rows(request.embeds, at_least=2)
        if not all(0 <= code < self._config.talker.vocab_size for code in request.history):
            raise InvalidRequestError("history holds an id outside the vocabulary; pass the codes that were emitted")
        if len(request.embeds) > POSITIONS or not self._slots:
            raise CapacityError(
                f"{STREAMS} streams of {POSITIONS} rows are all there is; release one or shorten the text"
            )
        handle, slot = StreamHandle(next(self._handles)), self._slots.pop()
        self._sampler.assign(slot, request.sampling, request.history)
        self._streams[handle] = slot, request.embeds.to(self._device, torch.float32, copy=True)
        return handle

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        if return_logits or any(step.forced is not None for step in steps):
            raise UnsupportedError("recompute neither forces codes nor returns logits")
        if len({step.stream for step in steps}) < len(steps):
            raise InvalidRequestError("a stream stands twice in one call; pass each stream once")
        for step in steps:
            self._check_rows(step.text[None], at_least=1)
            if step.stream not in self._streams or step.stream in self._ended:
                raise InvalidRequestError(f"stream {step.stream} is unknown, released or ended; prefill a new one")
            if len(self._streams[step.stream][1]) >= POSITIONS:
                raise CapacityError(f"stream {step.stream} has used its {POSITIONS} positions; release it")
        return [self._frame(step, *self._streams[step.stream]) for step in steps]

    def release(self, stream: StreamHandle) -> None:
        if stream not in self._streams:
            raise InvalidRequestError(f"stream {stream} is unknown or was released before; release it once")
        self._slots.append(self._streams.pop(stream)[0])

    @torch.inference_mode()
    def _frame(self, step: DecodeStep, slot: int, rows: Tensor) -> Frame:
        talker, predictor = self._talker, self._talker.code_predictor
        sampler_row = torch.tensor([slot], device=self._device)
        hidden = talker.model(inputs_embeds=rows[None], use_cache=False).last_hidden_state[:, -1:]
        codes = [self._sampler.choose_first(sampler_row, talker.codec_head(hidden)[:, -1].float())]
        if int(codes[0]) == self._config.codec_eos_id:
            self._ended.add(step.stream)
            return Frame(step.stream, None)
        spoken = [talker.get_input_embeddings()(codes[0][None])]
        for codebook, table in enumerate(predictor.get_input_embeddings(), start=1):
            known = torch.cat([hidden, *spoken], dim=1)
            logits = predictor(inputs_embeds=known, use_cache=False).logits[:, -1].float()
            codes.append(self._sampler.choose_rest(sampler_row, logits, codebook))
            spoken.append(table(codes[-1][None]))
        self._sampler.advance(sampler_row, codes[0])
        row = torch.cat(spoken, dim=1).sum(1) + step.text.to(self._device, torch.float32)
        self._streams[step.stream] = slot, torch.cat([rows, row])
        return Frame(step.stream, tuple(torch.cat(codes).tolist()))

    def _check_rows(self, rows: Tensor, at_least: int) -> None:
        width = self._config.talker.hidden_size
        fits = rows.ndim == 2 and len(rows) >= at_least and rows.shape[1] == width and rows.is_floating_point()
        if not fits or not rows.isfinite().all():
            raise InvalidRequestError(
                f"rows are {rows.dtype} {list(rows.shape)}, expected finite [n >= {at_least}, {width}]"
            )


@hookimpl
def megatalker_backends() -> list[TalkerBackend]:
    return [
        TalkerBackend(
            name="recompute",
            summary="no cache: every frame computes its whole past again",
            api_version=1,
            capabilities=CAPABILITIES,
            probe=lambda _checkpoint, _device, _settings: AVAILABLE,
            load=RecomputeDecoder,
        )
    ]
