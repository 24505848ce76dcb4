"""A frame may be waited for later: the engine does other work, on the same device, in between."""

import torch

from megatalker_conformance.checks import Judge
from megatalker_conformance.speech import Streams
from megatalker_conformance.utterances import SENTENCES, Utterances

FRAMES = 6


def test_frames_waited_for_later_are_those_waited_for_at_once(
    streams: Streams, utterances: Utterances, judge: Judge, device: torch.device
) -> None:
    said = [utterances.prompt(text, "interleaved", judge.manner) for text in SENTENCES[:2]]
    running = [streams.start(utterance) for utterance in said[: streams.decoder.max_streams]]
    for frame in range(FRAMES):
        if frame % 3 == 2:
            streams.advance(*running)
            continue
        take = streams.begin(*running)
        junk = [torch.full((1 << size,), torch.nan, device=device) for size in range(16)]  # where memory is free, it is
        torch.cat(junk).sum().isnan().item()  # used
        take()
    for stream in running:
        judge(stream.utterance, stream.codes, FRAMES)
