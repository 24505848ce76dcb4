"""The sides of a trial: the official package and our engine, each of which speaks prompts with seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import load_official_model, quiet
from megatalker.engine import Engine
from megatalker.errors import IncompleteSpeechError
from megatalker.settings import Settings
from megatalker.voices import Voice, VoiceCloner, default_voice, read_reference
from megatalker_conformance.quality.prompts import SpokenPrompt
from megatalker_conformance.verify.subject import for_official

Pcm = NDArray[np.float32]
Task = tuple[SpokenPrompt, int]
"""A prompt, and the seed to speak it with."""
MOST_FRAMES = 2048
"""Frames of one take at most, on every side: where the official package stops by default."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One task, spoken."""

    pcm: Pcm
    """``[samples]`` float32 at 24 kHz."""
    gaps: int | None
    """Times that a player which begins with the first chunk ran dry; ``None`` where speech does not come in chunks."""


SpeakAll = Callable[[Sequence[Task]], Iterator[Spoken]]
"""Speaks tasks, and yields each, in their order, when it is done."""


@contextmanager
def official_side(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, language: str, speaker: str | None
) -> Iterator[SpeakAll]:
    """The official package, as its users call it: one prompt at a time, with the checkpoint's own sampling."""
    model = load_official_model(checkpoint, device, dtype)
    variant = checkpoint.config.variant

    @cache
    def cloned(ref_audio: Path, ref_text: str | None) -> Any:
        recording, alone = for_official(ref_audio), ref_text is None
        return model.create_voice_clone_prompt(ref_audio=recording, ref_text=ref_text, x_vector_only_mode=alone)

    def speak(prompt: SpokenPrompt) -> Pcm:
        if variant == "custom_voice":
            found, _ = model.generate_custom_voice(prompt.text, speaker, language, max_new_tokens=MOST_FRAMES)
        elif variant == "voice_design":
            found, _ = model.generate_voice_design(prompt.text, "", language, max_new_tokens=MOST_FRAMES)
        else:
            voice = cloned(prompt.ref_audio, prompt.ref_text)
            found, _ = model.generate_voice_clone(
                prompt.text, language, voice_clone_prompt=voice, max_new_tokens=MOST_FRAMES
            )
        return np.asarray(found[0], np.float32)

    def speak_all(tasks: Sequence[Task]) -> Iterator[Spoken]:
        for prompt, seed in tasks:
            torch.manual_seed(seed)
            with quiet():
                pcm = speak(prompt)
            yield Spoken(pcm, None)

    yield speak_all


@contextmanager
def engine_side(checkpoint: Checkpoint, settings: Settings, language: str, speaker: str | None) -> Iterator[SpeakAll]:
    """Our engine with these settings, which name its backends; as many streams at once as it has room for."""
    unhurried = settings.model_copy(update={"max_ahead_s": None, "max_untaken_s": None})
    default = None if checkpoint.config.variant == "base" else _own_voice(checkpoint, speaker)
    alone = Lock()
    with Engine.open(unhurried, checkpoint=checkpoint) as engine, ExitStack() as stack:
        engine.warmup()

        @cache
        def cloner() -> VoiceCloner:
            return stack.enter_context(VoiceCloner(checkpoint, engine.device))

        @cache
        def cloned(ref_audio: Path | None, ref_text: str | None) -> Voice:
            assert ref_audio is not None  # prompts of base checkpoints have one
            return cloner().clone(read_reference(ref_audio), reference_text=ref_text)

        def speak(task: Task) -> Spoken:
            prompt, seed = task
            with alone:
                voice = default or cloned(prompt.ref_audio, prompt.ref_text)
            stream = engine.speak(prompt.text, voice=voice, language=language, seed=seed, max_frames=MOST_FRAMES)
            chunks: list[Pcm] = []
            with suppress(IncompleteSpeechError):  # what was said is what the judges hear
                chunks.extend(chunk.pcm for chunk in stream)
            pcm = np.concatenate(chunks) if chunks else np.empty(0, np.float32)
            return Spoken(pcm, stream.facts().underruns)

        def speak_all(tasks: Sequence[Task]) -> Iterator[Spoken]:
            with ThreadPoolExecutor(settings.max_streams, "megatalker-quality") as pool:
                yield from pool.map(speak, tasks)

        yield speak_all


def _own_voice(checkpoint: Checkpoint, speaker: str | None) -> Voice:
    return default_voice(checkpoint) if speaker is None else Voice.named(speaker)


def form_settings(settings: Settings, form: str) -> Settings:
    """Settings of one of our faster forms, see :data:`~megatalker.cli.verify.quality_options.FORMS`."""
    if form == "fast":
        codecs = _with(settings.codecs, "streaming", precision="fast")
        return settings.model_copy(update={"codec": "streaming", "codecs": codecs})
    backends = _with(settings.backends, "compiled", weights=form)
    return settings.model_copy(update={"backend": "compiled", "backends": backends})


def _with(tables: Mapping[str, Mapping[str, Any]], name: str, **changes: Any) -> dict[str, Mapping[str, Any]]:
    return {**tables, name: {**tables.get(name, {}), **changes}}
