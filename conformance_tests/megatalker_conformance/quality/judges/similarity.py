"""Models that tell speakers apart. A judge returns an embedding; the cosine of two is their similarity."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from megatalker.plugins.judges import Hearing, JudgeContext, SpeechJudge
from megatalker.plugins.recogniser_input import RATE
from megatalker_conformance.quality.judges.libraries import at_16_khz, needs, version_of

WAVLM, ECAPA = "microsoft/wavlm-base-plus-sv", "speechbrain/spkrec-ecapa-voxceleb"
Embedding = NDArray[np.float32]


def _wavlm(context: JudgeContext) -> Hearing:
    import torch
    from transformers import Wav2Vec2FeatureExtractor, WavLMForXVector

    name = context.model or WAVLM
    extractor = Wav2Vec2FeatureExtractor.from_pretrained(name)
    model = WavLMForXVector.from_pretrained(name).to(context.device).eval()

    def embed(pcm: NDArray[np.float32]) -> Embedding:
        inputs = extractor(at_16_khz(pcm), sampling_rate=RATE, return_tensors="pt").to(context.device)
        with torch.inference_mode():
            found: Embedding = model(**inputs).embeddings[0].float().cpu().numpy()
        return found

    return embed


def _speechbrain(context: JudgeContext) -> Hearing:
    import torch
    from speechbrain.inference.speaker import EncoderClassifier

    options = {"device": str(context.device)}
    model = EncoderClassifier.from_hparams(source=context.model or ECAPA, run_opts=options)

    def embed(pcm: NDArray[np.float32]) -> Embedding:
        with torch.inference_mode():
            found: Embedding = model.encode_batch(torch.from_numpy(at_16_khz(pcm))[None]).reshape(-1).cpu().numpy()
        return found

    return embed


def _resemblyzer(context: JudgeContext) -> Hearing:
    with _without_voice_activity():
        from resemblyzer import VoiceEncoder
    model = VoiceEncoder("cpu" if context.device.type != "cuda" else context.device, verbose=False)

    def embed(pcm: NDArray[np.float32]) -> Embedding:
        found: Embedding = model.embed_utterance(at_16_khz(pcm))
        return found

    return embed


@contextmanager
def _without_voice_activity() -> Iterator[None]:
    """Import resemblyzer without ``webrtcvad``, which cuts silence there, is not used here, and needs a compiler and an
    old setuptools.
    """
    if "webrtcvad" in sys.modules:
        yield
        return
    sys.modules["webrtcvad"] = ModuleType("webrtcvad")
    try:
        yield
    finally:
        del sys.modules["webrtcvad"]


SIMILARITY = [
    SpeechJudge(
        name="wavlm",
        kind="similarity",
        summary="WavLM base plus for speaker verification; downloads its model",
        version=version_of("transformers", WAVLM),
        probe=needs("transformers", "pip install 'megatalker[official]'"),
        load=_wavlm,
        rank=30,
    ),
    SpeechJudge(
        name="speechbrain",
        kind="similarity",
        summary="ECAPA-TDNN of SpeechBrain; downloads its model",
        version=version_of("speechbrain", ECAPA),
        probe=needs("speechbrain", "pip install speechbrain"),
        load=_speechbrain,
        rank=20,
    ),
    SpeechJudge(
        name="resemblyzer",
        kind="similarity",
        summary="GE2E speaker encoder, whose weights come with the package",
        version=version_of("resemblyzer", "pretrained.pt"),
        probe=needs("resemblyzer", "pip install --no-deps resemblyzer"),
        load=_resemblyzer,
        rank=10,
    ),
]
