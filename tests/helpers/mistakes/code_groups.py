"""Talker decoders and codecs that take every frame for one of sixteen codes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import CodecState, LoadContext
from megatalker.sampling import SamplerRows
from megatalker_backends.compiled.runner import DirectRunner
from mistakes.catalogue import Decoder, Quick, mistake

TALKERS = "test_models_of_every_kind_speak_as_reference"
CODECS = "test_codecs_of_any_number_of_codebooks_equal_one_full_forward"
SIXTEEN = 16


@mistake(TALKERS)
class FirstSixteen(Decoder):
    """Feeds the talker with the first sixteen codes of a frame."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        weights = self._model.weights
        embeddings = weights.embeddings.clone()
        for offset in weights.offsets[SIXTEEN:].tolist():
            embeddings[offset : offset + checkpoint.config.predictor.vocab_size] = 0
        self._model.weights = replace(weights, embeddings=embeddings)
        self._runner = DirectRunner(self._model)


class FromTheEnd(SamplerRows):
    def rest_noise(self, rows: Tensor, codebooks: int, size: int) -> Tensor:
        return self._noise(rows, SIXTEEN - codebooks, codebooks, size)


@mistake(TALKERS)
class CountedFromTheEnd(Decoder):
    """Numbers the codes of a frame, and their noise, so that the last one is the sixteenth."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        self._model.sampler.__class__ = FromTheEnd


@mistake(CODECS)
class SixteenApart(Quick):
    """Takes codes that lie behind each other for frames of sixteen."""

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        return super().decode(states, [self._frames(fresh) for fresh in codes])

    @staticmethod
    def _frames(codes: Tensor) -> Tensor:
        frames, groups = codes.shape
        places = SIXTEEN * torch.arange(frames)[:, None] + torch.arange(groups)
        return codes.flatten()[places % codes.numel()]


@mistake(CODECS)
class SixteenCodebooks(Quick):
    """Adds up the entries of the first sixteen codebooks."""

    def __init__(self, checkpoint: Checkpoint, context: LoadContext) -> None:
        super().__init__(checkpoint, context)
        codebooks: Any = self.decoder.codebooks
        codebooks.table[SIXTEEN * checkpoint.codec_config.codebook_size :] = 0
