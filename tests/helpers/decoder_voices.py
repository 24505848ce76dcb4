"""Streams for decoders of any backend, what they say, and how one ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError
from megatalker.interfaces import DecodeStep, Frame, StreamRequest
from megatalker.plugins.checked import CheckedTalker
from megatalker.sampling import SamplingParams

GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False, repetition_penalty=1.0, min_new_tokens=1000)
SEEDED = SamplingParams(seed=3, min_new_tokens=1000)
Codes = tuple[int, ...]


@dataclass(frozen=True)
class VoiceRequest:
    """One stream's request and the text rows of its steps."""

    request: StreamRequest
    text: Tensor
    """``[frames, hidden_size]``"""


def voice(checkpoint: Checkpoint, seed: int, rows: int, frames: int, sampling: SamplingParams = GREEDY) -> VoiceRequest:
    """Random rows."""
    noise = torch.Generator().manual_seed(seed)
    hidden = checkpoint.config.talker.hidden_size
    embeds, text = (0.1 * torch.randn(size, hidden, generator=noise) for size in (rows, frames))
    return VoiceRequest(StreamRequest(embeds, sampling), text)


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


def require_that_one_may_end(
    decoder: CheckedTalker, checkpoint: Checkpoint, ending: VoiceRequest, lasting: VoiceRequest
) -> None:
    """The first ends by a forced code in its first frame; its neighbour says what it says alone."""
    config = checkpoint.config
    alone = codes_of(say(decoder, lasting))
    streams = [decoder.prefill([each.request])[0] for each in (ending, lasting)]
    last = (config.codec_eos_id, *[0] * (config.num_code_groups - 1))
    steps = [DecodeStep(streams[0], ending.text[0], forced=last), DecodeStep(streams[1], lasting.text[0])]
    ended, going = decoder.decode(steps, return_logits=True)()
    assert ended.ended
    assert ended.logits is not None
    assert ended.logits.predictor.shape == (0, config.predictor.vocab_size)
    with pytest.raises(InvalidRequestError, match="has ended"):
        decoder.decode(steps)()
    rest = [decoder.decode([DecodeStep(streams[1], text)])()[0].codes for text in lasting.text[1:]]
    assert [going.codes, *rest] == alone
    for stream in streams:
        decoder.release(stream)
