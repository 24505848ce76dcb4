"""Damages of how recordings are read and made into voices."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soxr

from megatalker.prompt import PromptBuilder
from megatalker.voices import VoiceCloner, reference_audio
from megatalker.voices.speaker_encoder import SpeakerEncoder

Spoil = Callable[[pytest.MonkeyPatch], None]


def _changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Spoil:
    """Return a damage that changes what a function gives."""
    right = getattr(owner, name)
    return lambda patch: patch.setattr(owner, name, lambda *given, **named: change(right(*given, **named)))


def _rounded(patch: pytest.MonkeyPatch) -> None:
    """Resamples to the length that soxr gives, which is a sample less for most recordings at 44.1 kHz."""
    patch.setattr(
        reference_audio, "to_24_khz", lambda mono, rate: mono if rate == 24_000 else soxr.resample(mono, rate, 24_000)
    )


def _shifted(patch: pytest.MonkeyPatch) -> None:
    right = reference_audio.to_24_khz
    patch.setattr(reference_audio, "to_24_khz", lambda mono, rate: np.roll(right(mono, rate), 1))


def _quick(patch: pytest.MonkeyPatch) -> None:
    right, resample = reference_audio.to_24_khz, soxr.resample

    def wrong(mono: Any, rate: int) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(soxr, "resample", lambda *given: resample(*given, quality="QQ"))
            return right(mono, rate)

    patch.setattr(reference_audio, "to_24_khz", wrong)


def _left_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reference_audio, "mix_down", lambda audio: audio[:, 0].copy())


RECORDINGS: Mapping[str, Spoil] = {
    "a recording is one sample short": _rounded,
    "a recording is one sample late": _shifted,
    "a recording is resampled in a hurry": _quick,
    "the left channel only is heard": _left_only,
    "channels are added instead of averaged": _changed(reference_audio, "mix_down", lambda mono: 2 * mono),
    "the speaker embedding is off by a little": _changed(SpeakerEncoder, "__call__", lambda vector: vector * 1.001),
    "the speaker embedding lacks its last place": _changed(
        SpeakerEncoder, "__call__", lambda vector: vector * (np.arange(len(vector)) < len(vector) - 1)
    ),
    "reference codes are cut after ten seconds": _changed(VoiceCloner, "_encode", lambda codes: codes[:125]),
}


def _short_reference(patch: pytest.MonkeyPatch) -> None:
    """The prompt holds twenty seconds of a reference at most."""
    right = PromptBuilder.build_all

    def wrong(self: PromptBuilder, texts: Any, *rest: Any, **named: Any) -> Any:
        short = [replace(text, plan=_cut(text.plan)) for text in texts]
        return right(self, short, *rest, **named)

    patch.setattr(PromptBuilder, "build_all", wrong)


def _cut(plan: Any) -> Any:
    codes = plan.voice.reference_codes
    return plan if codes is None else replace(plan, voice=replace(plan.voice, reference_codes=codes[:250]))


REFERENCES: Mapping[str, Spoil] = {"long references are cut in the prompt": _short_reference}
