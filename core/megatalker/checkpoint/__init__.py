"""Checkpoints in the official layout: configuration, tensors, tokenizer, download."""

from megatalker.checkpoint.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
