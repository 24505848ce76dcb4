"""Prompts and cloned voices, held to the official package bit for bit."""

from collections.abc import Iterator
from functools import partial

import torch

from megatalker.checkpoint.official import load_official_model, quiet
from megatalker.checkpoint.template import text_ids
from megatalker.cli.verify.card import Check
from megatalker_conformance.cases import LAYOUTS, SENTENCES
from megatalker_conformance.official_prompts import OfficialPrompts, same_prompt
from megatalker_conformance.one_prompt import OnePromptBuilder
from megatalker_conformance.verify.encoders import compare_voice
from megatalker_conformance.verify.modes import SpeakingMode
from megatalker_conformance.verify.recordings import made_up_recordings
from megatalker_conformance.verify.subject import NotRunError, VerifySubject

TEXTS = (SENTENCES[0], SENTENCES[2], "你好,世界。")
_CPU = torch.device("cpu")


def prompts(subject: VerifySubject) -> Iterator[Check]:
    """Every mode, in both layouts, in float32."""
    subject.require_official()
    official = OfficialPrompts(subject.checkpoint)
    builder = OnePromptBuilder(subject.checkpoint, _CPU, torch.float32)
    for mode in subject.modes:
        different = _different(subject, mode, official, builder)
        equal = f"equal bit for bit: {len(TEXTS)} texts in {len(LAYOUTS)} layouts"
        found = f"other than the official ones: {', '.join(different)}" if different else equal
        yield Check("prompts", mode.name, "failed" if different else "passed", found)


def _different(
    subject: VerifySubject, mode: SpeakingMode, official: OfficialPrompts, builder: OnePromptBuilder
) -> list[str]:
    voice, language, instruct = mode.voice, mode.language, mode.instruct
    ask = partial(official, voice=voice, language=language, instruct=instruct, reference_text=mode.reference_text)
    found = []
    for text in TEXTS:
        ids = text_ids(subject.checkpoint.tokenizer, text)
        for layout in LAYOUTS:
            ours = builder.build(ids, voice=voice, layout=layout, language=language, instruct=instruct)
            expected = ask(text, layout)
            if not same_prompt(ours, expected):
                found.append(f"{text[:16]!r} {layout}")
    return found


def cloning(subject: VerifySubject) -> Iterator[Check]:
    """Voices of recordings are what the official package makes of their files: made-up ones, and the given one."""
    if subject.checkpoint.config.variant != "base":
        return  # the others do not clone
    subject.require_official()
    official = load_official_model(subject.checkpoint, _CPU, torch.float32)
    for check in made_up_recordings(subject.checkpoint, official):
        subject.reached("recordings", 1)
        yield check
    if subject.official_recording is None:
        raise NotRunError("no recording was given: --ref-audio FILE --ref-text 'every word said in it'")
    subject.reached("recordings", 1)
    text = subject.order.ref_text
    with quiet():
        (item,) = official.create_voice_clone_prompt(subject.official_recording, text, x_vector_only_mode=text is None)
    for mode in subject.modes:
        if not mode.spoken:
            continue
        compared = compare_voice(mode.voice, item.ref_spk_embedding, item.ref_code)
        yield Check("cloning", mode.name, "passed" if compared.equal else "failed", str(compared))
