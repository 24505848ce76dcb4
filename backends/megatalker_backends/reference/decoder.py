"""Talker decoder that drives the official modules: one stream and one frame at a time, with their own caches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model
from megatalker.interfaces import (
    BackendSettings,
    DecodeStep,
    Frame,
    FrameLogits,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins.stream_table import StreamTable, TableEntry
from megatalker.sampling import CodeVocabulary, SamplerRows
from megatalker.settings import Integer

CAPABILITIES = TalkerCapabilities(
    devices=frozenset({"cpu", "cuda", "mps"}),
    dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
    forced_codes=True,
    seeded_sampling=True,
    batch_invariant=True,
)


class ReferenceSettings(BackendSettings):
    """Settings of the ``reference`` talker backend."""

    max_streams: Annotated[Integer, Field(ge=1)] | None = None
    """Streams held at the same time. They decode one after another; each costs the memory of its own cache. ``None``:
    the engine's ``max_streams``."""
    max_positions: Annotated[Integer, Field(ge=2)] | None = None
    """Prompt rows plus frames of one stream, at most the checkpoint's own limit. ``None``: that limit."""


@dataclass(slots=True)
class _ReferenceStream:
    cache: Any
    """The official talker's key-value cache."""
    hidden: Tensor
    """``[1, 1, hidden_size]``: the talker's last hidden state."""
    logits: Tensor
    """``[1, talker vocab]`` float32: pending, for code 0 of the next frame."""


class ReferenceDecoder(TalkerDecoder):
    """``talker.model``, ``codec_head`` and ``code_predictor`` of the official package, called as its ``generate`` does.

    Raises:
        CheckpointError: the official package cannot load the checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint, context: LoadContext[ReferenceSettings]) -> None:
        settings = context.settings
        streams = settings.max_streams or context.max_streams
        config = checkpoint.config
        limit = config.talker.max_positions
        positions = limit if settings.max_positions is None else min(settings.max_positions, limit)
        self._capabilities = replace(CAPABILITIES, max_streams=streams, max_positions=positions)
        self._device = context.device
        self._dtype = context.dtype
        self._groups = config.num_code_groups
        self._eos_id = config.codec_eos_id
        self._predictor_vocab = config.predictor.vocab_size
        self._talker = load_official_model(checkpoint, context.device, context.dtype).model.talker
        self._sampler = SamplerRows(streams, CodeVocabulary.from_config(config), context.device)
        self._row_ids = torch.arange(streams, device=context.device)
        self._table = StreamTable[_ReferenceStream](streams)

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self._capabilities

    @torch.inference_mode()
    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        with self._table.admit(requests) as entries:
            for entry, request in zip(entries, requests, strict=True):
                self._sampler.assign(entry.row, request.sampling, request.history)
                entry.state = self._talk(request.embeds.to(self._device, self._dtype), cache=None)
        return [entry.handle for entry in entries]

    @torch.inference_mode()
    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        return [self._frame(step, self._table[step.stream], return_logits) for step in steps]

    def release(self, stream: StreamHandle) -> None:
        self._table.release(stream)

    def close(self) -> None:
        del self._talker, self._table

    def _frame(self, step: DecodeStep, entry: TableEntry[_ReferenceStream], return_logits: bool) -> Frame:
        state, rows = entry.state, self._row_ids[entry.row : entry.row + 1]
        forced = None if step.forced is None else torch.tensor([int(code) for code in step.forced], device=self._device)
        first = self._sampler.choose_first(rows, state.logits) if forced is None else forced[:1]
        if int(first) == self._eos_id:
            nothing = state.logits.new_empty(0, self._predictor_vocab)
            return Frame(step.stream, None, FrameLogits(state.logits[0], nothing) if return_logits else None)
        codes, predictor_logits = self._predict(rows, state.hidden, first, forced)
        self._sampler.advance(rows, first)
        entry.advance()
        embeds = self._embed(codes) + step.text.to(self._device, self._dtype)
        entry.state = self._talk(embeds, state.cache)
        logits = FrameLogits(state.logits[0], predictor_logits) if return_logits else None
        return Frame(step.stream, tuple(codes.tolist()), logits)

    def _talk(self, embeds: Tensor, cache: Any) -> _ReferenceStream:
        """Run ``[T, hidden_size]`` rows through the talker, after what ``cache`` (``None``: nothing) already holds."""
        output = self._talker.model(inputs_embeds=embeds[None], past_key_values=cache, use_cache=True)
        hidden = output.last_hidden_state[:, -1:]
        return _ReferenceStream(output.past_key_values, hidden, self._talker.codec_head(hidden)[:, -1].float())

    def _predict(self, rows: Tensor, hidden: Tensor, first: Tensor, forced: Tensor | None) -> tuple[Tensor, Tensor]:
        """All codes of the frame ``[groups]``; raw logits of the later ones ``[groups - 1, predictor vocab]``."""
        predictor = self._talker.code_predictor
        if forced is None:
            noise = self._sampler.rest_noise(rows, self._groups - 1, self._predictor_vocab)
        codes, logits = [first], []
        pair = torch.cat((hidden, self._talker.get_input_embeddings()(first[None])), dim=1)
        output = predictor(inputs_embeds=pair, use_cache=True)
        for codebook in range(1, self._groups):
            if codebook > 1:
                output = predictor(
                    input_ids=codes[-1][None],
                    past_key_values=output.past_key_values,
                    use_cache=True,
                    generation_steps=output.generation_steps,
                )
            row = output.logits[:, -1].float()
            logits.append(row)
            if forced is None:
                codes.append(self._sampler.choose_rest(rows, row, codebook, noise[:, codebook - 1]))
            else:
                codes.append(forced[codebook, None])
        return torch.cat(codes), torch.cat(logits)

    def _embed(self, codes: Tensor) -> Tensor:
        """Sum of the embeddings of one frame's codes, ``[1, hidden_size]``, reduced as ``generate`` reduces it."""
        tables = (self._talker.get_input_embeddings(), *self._talker.code_predictor.get_input_embeddings())
        rows = [table(code[None]) for table, code in zip(tables, codes, strict=True)]
        return torch.stack(rows, dim=1).sum(1)
