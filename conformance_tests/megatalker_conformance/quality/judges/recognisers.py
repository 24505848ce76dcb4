"""Recognisers that run on this machine."""

import numpy as np
from numpy.typing import NDArray

from megatalker.plugins.judges import Hearing, JudgeContext, SpeechJudge
from megatalker.prompt.languages import NAMES
from megatalker_conformance.quality.judges.libraries import at_16_khz, needs, version_of
from megatalker_conformance.recogniser import Recogniser

CODES = {name: code for code, name in NAMES.items()}
WHISPER, QWEN_ASR = "large-v3", "Qwen/Qwen3-ASR-1.7B"
"""Models that are taken by default; the benchmark hears English by the first."""


def _pocketsphinx(context: JudgeContext) -> Hearing:
    """Knows no words but those that may be said: with an open vocabulary it is too weak a judge."""
    recogniser = Recogniser(sorted(context.vocabulary))
    return lambda pcm: " ".join(recogniser.hear(pcm))


def _whisper(context: JudgeContext) -> Hearing:
    from faster_whisper import WhisperModel

    kind, _, index = str(context.device).partition(":")
    place = "cuda" if kind == "cuda" else "cpu"
    model = WhisperModel(context.model or WHISPER, device=place, device_index=int(index or 0))
    language = CODES.get(context.language)

    def hear(pcm: NDArray[np.float32]) -> str:
        segments, _ = model.transcribe(at_16_khz(pcm), language=language, beam_size=5, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in segments)

    return hear


def _qwen_asr(context: JudgeContext) -> Hearing:
    import torch
    from qwen_asr import Qwen3ASRModel

    dtype = torch.bfloat16 if context.device.type == "cuda" else torch.float32
    model = Qwen3ASRModel.from_pretrained(context.model or QWEN_ASR, dtype=dtype, device_map=str(context.device))
    language = context.language.capitalize()

    def hear(pcm: NDArray[np.float32]) -> str:
        (heard,) = model.transcribe((at_16_khz(pcm), 16_000), language=language)
        return str(heard.text)

    return hear


RECOGNISERS = [
    SpeechJudge(
        name="whisper",
        kind="recogniser",
        summary="Whisper by faster-whisper; downloads its model",
        version=version_of("faster-whisper", WHISPER),
        probe=needs("faster_whisper", "pip install faster-whisper", languages=frozenset(CODES)),
        load=_whisper,
        rank=30,
    ),
    SpeechJudge(
        name="qwen_asr",
        kind="recogniser",
        summary="Qwen3-ASR; downloads its model, and its package wants another transformers than qwen-tts",
        version=version_of("qwen-asr", QWEN_ASR),
        probe=needs("qwen_asr", "pip install --no-deps qwen-asr", languages=frozenset(CODES)),
        load=_qwen_asr,
        rank=20,
    ),
    SpeechJudge(
        name="pocketsphinx",
        kind="recogniser",
        summary="pocketsphinx with the words that may be said and no others; needs no download",
        version=version_of("pocketsphinx", "en-us, closed vocabulary"),
        probe=needs("pocketsphinx", "pip install 'megatalker[recogniser]'", languages=frozenset({"english"})),
        load=_pocketsphinx,
        rank=10,
    ),
]
