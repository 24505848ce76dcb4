"""Utterances that an engine speaks at the same time, held to official prompts, logits and sound."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.cli.verify.card import Check
from megatalker.engine import Engine
from megatalker.sampling import SamplingParams
from megatalker.voices import Voice
from megatalker_conformance.cases import SENTENCES, Layout
from megatalker_conformance.verify.company import LIVELY, UNENDING_GREEDY, PlannedStream, PlayedStream
from megatalker_conformance.verify.contract import ContractJudge
from megatalker_conformance.verify.subject import VerifySubject

SPOKEN: tuple[tuple[str, Layout, SamplingParams, int], ...] = (
    (SENTENCES[0], "upfront", LIVELY, 30),
    (SENTENCES[2], "interleaved", LIVELY, 12),
    (SENTENCES[1], "interleaved", UNENDING_GREEDY, 30),
    (SENTENCES[3], "upfront", replace(LIVELY, repetition_penalty=1.0), 20),
    (SENTENCES[1], "interleaved", replace(LIVELY, seed=12), 30),
)
"""Texts, layouts, sampling and frames of utterances that are spoken at the same time."""


def utterances(subject: VerifySubject) -> Check:
    """Codes of utterances through the engine follow from the official prompt; their sound is the official codec's."""
    settings = subject.engine_settings.model_copy(update={"dtype": "float32"})
    judge = ContractJudge(subject.checkpoint.config, subject.forward)
    voices = [mode for mode in subject.modes if mode.spoken]
    seeded = subject.talker_backend.capabilities.seeded_sampling
    asked, wrong, frames = [], [], 0
    with Engine.open(settings, checkpoint=subject.checkpoint, registry=subject.registry) as engine:
        engine.warmup()
        for number, (text, layout, sampling, most) in enumerate(SPOKEN):
            mode, manner = voices[number % len(voices)], sampling if seeded else UNENDING_GREEDY
            speech = engine.speak(
                text,
                voice=mode.voice,
                language=mode.language,
                instruct=mode.instruct,
                sampling=manner,
                max_frames=most,
                layout=layout,
                clean_text=False,
                return_codes=True,
            )
            case = subject.cases.prompt(
                text, layout, manner, voice=mode.voice, language=mode.language, instruct=mode.instruct
            )
            asked.append((case, mode.voice, speech))
        heard = [(case, voice, list(speech)) for case, voice, speech in asked]
    for case, voice, chunks in heard:
        said = np.concatenate([chunk.codes for chunk in chunks if chunk.codes is not None])
        pcm = torch.from_numpy(np.concatenate([chunk.pcm for chunk in chunks]))
        frames += len(said)
        stream = PlayedStream(PlannedStream(case, len(said)), [tuple(frame) for frame in said.tolist()])
        fault, _ = judge.fault(stream)
        official = _official_sound(subject, voice, torch.from_numpy(said))
        error = float((pcm - official).abs().max()) if pcm.shape == official.shape else float("inf")
        if fault is None and error > subject.sample_limit:
            fault = f"samples differ by {error:.2g} (allowed: {subject.sample_limit:.2g})"
        if fault is not None:
            wrong.append(f"{case.name}: {fault}")
    found = f"{len(heard)} utterances, {frames} frames: codes and sound are the official ones"
    if wrong:
        found = f"{len(wrong)} of {len(heard)} utterances are wrong; {'; '.join(wrong[:3])}"
    return Check("streams", "utterances through the engine", "failed" if wrong else "passed", found)


def _official_sound(subject: VerifySubject, voice: Voice, said: Tensor) -> Tensor:
    """One forward of the official decoder, which hears the reference of an in-context voice first."""
    heard = voice.reference_codes if voice.reference_codes is not None else said[:0]
    return subject.official_codec.decode(torch.cat((heard, said)))[len(heard) * FRAME_SAMPLES :]
