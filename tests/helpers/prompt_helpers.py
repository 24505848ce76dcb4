"""Prompts of a checkpoint."""

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import reference_ids
from megatalker.prompt import PromptPlanner
from megatalker.voices import Voice
from megatalker_conformance.one_prompt import OnePromptBuilder

CPU = torch.device("cpu")
REFERENCE_TEXT = "This is what I said before."


def builder(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> OnePromptBuilder:
    return OnePromptBuilder(checkpoint, CPU, dtype)


def ids_needed(checkpoint: Checkpoint, voice: Voice) -> int:
    return PromptPlanner(checkpoint).plan(voice=voice).ids_needed


def plain_speaker(checkpoint: Checkpoint) -> str:
    return next(name for name in checkpoint.config.speakers if name not in checkpoint.config.dialects)


def cloned(checkpoint: Checkpoint, frames: int | None = None) -> Voice:
    """A voice of random values, with ``frames`` reference frames."""
    noise = torch.Generator().manual_seed(7)
    config = checkpoint.config
    x_vector = torch.randn(config.talker.hidden_size, generator=noise)
    if frames is None:
        return Voice(x_vector=x_vector)
    codes = torch.randint(config.predictor.vocab_size, (frames, config.num_code_groups), generator=noise)
    ids = tuple(reference_ids(checkpoint.tokenizer, REFERENCE_TEXT))
    return Voice(x_vector=x_vector, reference_codes=codes, reference_text_ids=ids)
