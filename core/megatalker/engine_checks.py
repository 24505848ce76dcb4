"""What a backend returned, checked before anything believes it. Each function returns the complaint, or ``None``."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES, ModelConfig
from megatalker.interfaces import DecodeStep, Frame


def check_handle(handle: object, taken: Collection[int]) -> str | None:
    """A prefill's answer: an integer that names no other running stream."""
    if not isinstance(handle, int) or isinstance(handle, bool):
        return f"prefill returned {type(handle).__name__}, expected a stream handle (int)"
    return f"prefill returned handle {handle}, which names a running stream" if handle in taken else None


def check_frames(frames: object, steps: Sequence[DecodeStep], config: ModelConfig) -> str | None:
    """A decode's answer: one frame for each step, in order, its codes inside the vocabulary."""
    if not isinstance(frames, list) or len(frames) != len(steps):
        found = f"{len(frames)} frames" if isinstance(frames, list) else type(frames).__name__
        return f"decode returned {found} for {len(steps)} steps"
    for index, (frame, step) in enumerate(zip(frames, steps, strict=True)):
        if not isinstance(frame, Frame) or frame.stream != step.stream:
            return f"decode result {index} is not the frame of stream {step.stream}: {frame!r}"
        complaint = None if frame.codes is None else _check_codes(frame.codes, config)
        if complaint is not None:
            return f"decode result {index}: {complaint}"
    return None


def _check_codes(codes: Sequence[int], config: ModelConfig) -> str | None:
    if len(codes) != config.num_code_groups:
        return f"{len(codes)} codes, expected {config.num_code_groups}"
    limits = [config.first_suppressed_id, *[config.predictor.vocab_size] * (config.num_code_groups - 1)]
    for group, (code, limit) in enumerate(zip(codes, limits, strict=True)):
        if not isinstance(code, int) or not 0 <= code < limit:
            return f"code {group} is {code!r}, expected an integer from 0 to {limit - 1}"
    return None


def check_chunks(chunks: object, codes: Sequence[Tensor]) -> str | None:
    """A codec's answer: for each state float32 samples, 1920 a frame."""
    if not isinstance(chunks, list) or len(chunks) != len(codes):
        found = f"{len(chunks)} chunks" if isinstance(chunks, list) else type(chunks).__name__
        return f"codec returned {found} for {len(codes)} states"
    for index, (chunk, given) in enumerate(zip(chunks, codes, strict=True)):
        expected = len(given) * FRAME_SAMPLES
        if not isinstance(chunk, Tensor) or chunk.dtype != torch.float32 or tuple(chunk.shape) != (expected,):
            found = f"{chunk.dtype} {list(chunk.shape)}" if isinstance(chunk, Tensor) else type(chunk).__name__
            return f"codec chunk {index} is {found}, expected float32 [{expected}]"
    return None


def check_samples(chunks: Sequence[Tensor]) -> str | None:
    """Such chunks, on the CPU: their samples are finite."""
    for index, chunk in enumerate(chunks):
        if not np.isfinite(chunk.numpy()).all():  # a sixth of what torch takes for so few samples
            return f"codec chunk {index} holds NaN or infinity"
    return None
