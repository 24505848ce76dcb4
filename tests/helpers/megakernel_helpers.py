"""The ``megakernel`` decoder on both devices of its tests, and something to say."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.interfaces import DecodeStep, Frame, LoadContext, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams
from megatalker_backends.megakernel.decoder import MegakernelDecoder
from megatalker_backends.megakernel.settings import MegakernelSettings

CPU = torch.device("cpu")
GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False, repetition_penalty=1.0, min_new_tokens=1000)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch sees no GPU")),
]
"""The specification on a CPU, the kernel on a GPU."""
POSITIONS = 200
"""Positions of every decoder, so that a GPU compiles one kernel for each checkpoint."""
Codes = tuple[int, ...]


@dataclass(frozen=True)
class VoiceRequest:
    """One stream's request and the text rows of its steps."""

    request: StreamRequest
    text: Tensor
    """``[frames, hidden_size]``"""


def megakernel(checkpoint: Checkpoint, device: str = "cpu", **settings: Any) -> CheckedTalker:
    """Loaded, and not warmed up."""
    own = MegakernelSettings(interpret=device == "cpu", **{"max_positions": POSITIONS, **settings})
    return CheckedTalker(
        MegakernelDecoder(checkpoint, LoadContext(torch.device(device), torch.bfloat16, own)), checkpoint.config
    )


def within(talker: CheckedTalker) -> MegakernelDecoder:
    """Return the decoder inside the shell."""
    assert isinstance(talker.decoder, MegakernelDecoder)
    return talker.decoder


def voice(
    checkpoint: Checkpoint,
    seed: int,
    rows: int,
    frames: int,
    sampling: SamplingParams = GREEDY,
    head: VoiceRequest | None = None,
) -> VoiceRequest:
    """Random rows; the prompt begins with that of ``head``."""
    noise = torch.Generator().manual_seed(seed)
    hidden = checkpoint.config.talker.hidden_size
    embeds, text = (0.1 * torch.randn(size, hidden, generator=noise) for size in (rows, frames))
    return VoiceRequest(StreamRequest(embeds, sampling), text)


def some_codes(checkpoint: Checkpoint, frames: int) -> list[list[int]]:
    """Arbitrary frames to force."""
    vocab, groups = checkpoint.config.predictor.vocab_size, checkpoint.config.num_code_groups
    return torch.randint(vocab, (frames, groups), generator=torch.Generator().manual_seed(5)).tolist()


def say(decoder: CheckedTalker, each: VoiceRequest, forced: Sequence[Sequence[int]] | None = None) -> list[Frame]:
    """Alone, with logits; released afterwards."""
    return say_together(decoder, [each], None if forced is None else [forced])[0]


def say_together(
    decoder: CheckedTalker, voices: Sequence[VoiceRequest], forced: Sequence[Sequence[Sequence[int]]] | None = None
) -> list[list[Frame]]:
    """All start at once and take part in each call until their own text is used up."""
    streams = decoder.prefill([each.request for each in voices])
    said: list[list[Frame]] = [[] for _ in voices]
    for index in range(max(len(each.text) for each in voices)):
        alive = [place for place, each in enumerate(voices) if index < len(each.text)]
        steps = [
            DecodeStep(streams[place], voices[place].text[index], None if forced is None else forced[place][index])
            for place in alive
        ]
        for place, frame in zip(alive, decoder.decode(steps, return_logits=True)(), strict=True):
            said[place].append(frame)
    for stream in streams:
        decoder.release(stream)
    return said


def codes_of(frames: Sequence[Frame]) -> list[Codes | None]:
    return [frame.codes for frame in frames]


def logits_of(frames: Sequence[Frame]) -> Tensor:
    """All logits of all frames, flat, float32 on the CPU."""
    rows = []
    for frame in frames:
        assert frame.logits is not None
        rows += [frame.logits.talker.cpu(), frame.logits.predictor.flatten().cpu()]
    return torch.cat(rows)


SEEDED = SamplingParams(seed=3, min_new_tokens=1000)
