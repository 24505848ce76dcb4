"""The ways in which a checkpoint speaks: its speakers, dialects and languages, described and cloned voices."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from numpy import float32
from numpy.typing import NDArray

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.template import reference_ids
from megatalker.voices import Voice, VoiceCloner, list_languages
from megatalker_conformance.cases import conformance_voice

DESCRIPTION = "A warm, low voice of an old man who takes his time."
INSTRUCTION = "Speak slowly and sadly."
MADE_UP_TEXT = "This is what I said before."
MADE_UP_FRAMES = 12
LONG_FRAMES = 375
"""Frames of a reference of half a minute."""


@dataclass(frozen=True)
class SpeakingMode:
    """One way to speak."""

    name: str
    voice: Voice
    language: str = "auto"
    instruct: str | None = None
    reference_text: str | None = None
    """The words of an in-context voice's recording."""
    spoken: bool = True
    """It is held to the official codes, too; the others differ from one that is in a row of their prompt."""


def modes(checkpoint: Checkpoint, recording: NDArray[float32] | None, reference_text: str | None) -> list[SpeakingMode]:
    """Every speaker and dialect, every language, with and without an instruction; or the same of other variants.

    Args:
        checkpoint: any variant.
        recording: a voice to clone, ``[samples]`` at 24 kHz, encoded as it is; without one, ``base`` checkpoints get a
            made-up voice.
        reference_text: what is said there.

    Raises:
        InvalidRequestError: there is a recording, but this is no ``base`` checkpoint.
    """
    if recording is not None:
        with VoiceCloner(checkpoint) as cloner:
            found = [SpeakingMode("cloned, speaker only", cloner.clone(recording, trim=False))]
            if reference_text is not None:
                voice = cloner.clone(recording, reference_text=reference_text, trim=False)
                found.append(SpeakingMode("cloned, in context", voice, reference_text=reference_text))
        *_, long = _made_up(checkpoint)
        found.append(replace(long, spoken=False))
    elif checkpoint.config.variant == "base":
        found = list(_made_up(checkpoint))
    elif checkpoint.config.variant == "voice_design":
        found = [
            SpeakingMode("described voice", Voice.designed(DESCRIPTION)),
            SpeakingMode("no description", Voice.designed("")),
        ]
    else:
        found = list(_speakers(checkpoint))
    spoken = found[0]
    if spoken.voice.kind == "speaker" and checkpoint.config.takes_instruct:
        found.append(replace(spoken, name=f"{spoken.name}, instructed", instruct=INSTRUCTION))
    languages = [language for language in list_languages(checkpoint) if language != "auto"]
    return found + [
        replace(spoken, name=f"{spoken.name}, {language}", language=language, spoken=False) for language in languages
    ]


def _speakers(checkpoint: Checkpoint) -> Iterator[SpeakingMode]:
    for name in checkpoint.config.speakers:
        dialect = checkpoint.config.dialects.get(name)
        yield SpeakingMode(f"speaker {name}" + (f" ({dialect})" if dialect else ""), Voice.named(name))


def _made_up(checkpoint: Checkpoint) -> Iterator[SpeakingMode]:
    voice, config = conformance_voice(checkpoint), checkpoint.config
    yield SpeakingMode("made-up voice, speaker only", voice)
    ids = tuple(reference_ids(checkpoint.tokenizer, MADE_UP_TEXT))
    for name, frames in (("in context", MADE_UP_FRAMES), ("long reference", LONG_FRAMES)):
        shape = (frames, config.num_code_groups)
        heard = torch.randint(config.predictor.vocab_size, shape, generator=torch.Generator().manual_seed(0))
        in_context = replace(voice, reference_codes=heard, reference_text_ids=ids)
        yield SpeakingMode(f"made-up voice, {name}", in_context, reference_text=MADE_UP_TEXT)
