"""Test cases: real prompts of the checkpoint under test, of many lengths, the same for every backend."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import text_ids
from megatalker.sampling import SamplingParams
from megatalker.voices import Voice, default_voice
from megatalker_conformance.one_prompt import OnePromptBuilder
from megatalker_conformance.streams import Codes, StreamCase

Layout = Literal["upfront", "interleaved"]
LAYOUTS: tuple[Layout, ...] = ("upfront", "interleaved")
LANGUAGE = "Auto"
SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and then it rests for a while under the old oak tree.",
    "Numbers are words too: one, two, three, four, five, six, seven; and so we count until somebody stops us.",
    "Yes.",
    "Bonjour, il fait beau!",
    "A much longer sentence keeps the decoder busy, because it goes on and on, clause after clause, without ever "
    "coming to the point that a listener hopes for, until at last it ends.",
)
"""Sentences of different lengths; the first two last at least 60 frames."""


def conformance_voice(checkpoint: Checkpoint) -> Voice:
    """The checkpoint's default voice, or for a ``base`` checkpoint an arbitrary, fixed speaker embedding."""
    if checkpoint.config.variant != "base":
        return default_voice(checkpoint)
    vector = torch.randn(checkpoint.config.talker.hidden_size, generator=torch.Generator().manual_seed(0))
    return Voice(x_vector=0.02 * vector, checkpoint_fingerprint=checkpoint.fingerprint)


class Cases:
    """Makes test cases of one checkpoint. Their tensors live on the CPU in float32.

    Args:
        checkpoint: any variant.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._builder = OnePromptBuilder(checkpoint, torch.device("cpu"), torch.float32)
        self._voice = conformance_voice(checkpoint)

    def prompt(
        self,
        text: str,
        layout: Layout,
        sampling: SamplingParams,
        *,
        voice: Voice | None = None,
        language: str = LANGUAGE,
        instruct: str | None = None,
    ) -> StreamCase:
        """A sentence, in the checkpoint's default voice unless another is given."""
        ids = text_ids(self._checkpoint.tokenizer, text)
        speaker = self._voice if voice is None else voice
        prompt = self._builder.build(ids, voice=speaker, language=language, instruct=instruct, layout=layout)
        return StreamCase(f"{text[:24]!r} {layout}", prompt.embeds, prompt.trailing, prompt.pad, sampling)

    def rows(self, count: int, sampling: SamplingParams) -> StreamCase:
        """A prompt of ``count`` rows taken from a real one in an arbitrary, fixed order."""
        base = self.prompt(SENTENCES[4], "upfront", sampling)
        order = torch.randint(len(base.embeds), (count,), generator=torch.Generator().manual_seed(count))
        return replace(base, name=f"{count} rows", embeds=base.embeds[order])

    def with_text_changed_at(self, case: StreamCase, frame: int) -> StreamCase:
        """The same case, whose text rows from ``frame`` on are others."""
        trailing = torch.cat((case.trailing[:frame], case.trailing[frame:].flip(0)))
        return replace(case, name=f"{case.name}, other text from {frame}", trailing=trailing)

    def emitted_rows(self, case: StreamCase, emitted: Sequence[Codes]) -> torch.Tensor:
        """``[frames, hidden_size]``: what the talker was fed for these frames."""
        codes = self._builder.frame_rows(torch.tensor(emitted))
        return codes + torch.stack([case.text(frame) for frame in range(len(emitted))])
