"""Engines on fake backends."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fake_backend import Behaviour, Fakes, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import text_ids
from megatalker.engine import Engine, SpeechStream
from megatalker.interfaces import DecodeStep, StreamRequest
from megatalker.prompt import Layout
from megatalker.voices import Voice
from megatalker_conformance.one_prompt import OnePromptBuilder

TEXT = "Hello there, this is a sentence of a few words."

Opener = Callable[..., Engine]


class EngineClock:
    """The engine's clock. It advances with what the engine does, also on a busy machine."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        """Seconds that a test has added."""
        self._began_at, self._reads = time.monotonic(), 0

    def __call__(self) -> float:
        self._reads += 1
        return self._began_at + self.passed_s + 1e-5 * self._reads


def fakes_with(**changes: Any) -> Fakes:
    return Fakes(talkers={"fake": Behaviour(**changes)})


def codes_of(stream: SpeechStream) -> list[tuple[int, ...]]:
    codes: list[tuple[int, ...]] = []
    for chunk in stream:
        assert chunk.codes is not None
        assert len(chunk.codes) == chunk.frames
        codes += [tuple(row) for row in chunk.codes.tolist()]
    return codes


def plain_codes(checkpoint: Checkpoint, text: str, seed: int, layout: Layout, frames: int) -> list[tuple[int, ...]]:
    """The same utterance without any engine: one prompt, one decoder, one loop."""
    builder = OnePromptBuilder(checkpoint, torch.device("cpu"), torch.float32)
    voice = Voice.named(next(iter(checkpoint.config.speakers)))
    prompt = builder.build(text_ids(checkpoint.tokenizer, text), voice=voice, layout=layout)
    talker = FakeTalker(checkpoint, Behaviour(frames=frames))
    (stream,) = talker.prefill([StreamRequest(prompt.embeds, replace(checkpoint.sampling, seed=seed))])
    codes = []
    while True:
        row = prompt.trailing[len(codes)] if len(codes) < len(prompt.trailing) else prompt.pad
        frame = talker.decode([DecodeStep(stream, row)])[0]
        if frame.codes is None:
            return codes
        codes.append(frame.codes)


def order_of_prompts(fakes: Fakes) -> list[int]:
    """Seeds of the streams that began or went on, as the backend was asked."""
    return [request.sampling.seed for request in fakes.loaded["fake"].prefills]
