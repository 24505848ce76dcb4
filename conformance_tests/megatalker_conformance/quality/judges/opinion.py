"""Predicted opinions of listeners, for information: no verdict depends on them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.checkpoint.official import refuse_telemetry
from megatalker.plugins.judges import Hearing, JudgeContext, SpeechJudge
from megatalker.plugins.recogniser_input import RATE
from megatalker_conformance.quality.judges.libraries import at_16_khz, needs, version_of

UTMOS = "tarepan/SpeechMOS:v1.2.0"
"""Repository and tag of the program that UTMOS comes with."""


def _dnsmos(_: JudgeContext) -> Hearing:
    refuse_telemetry()
    from speechmos import dnsmos

    def rate(pcm: NDArray[np.float32]) -> float:
        return float(dnsmos.run(at_16_khz(pcm).clip(-1, 1), RATE)["ovrl_mos"])

    return rate


def _utmos(context: JudgeContext) -> Hearing:
    import torch

    model: Any = torch.hub.load(  # type: ignore[no-untyped-call]
        context.model or UTMOS, "utmos22_strong", trust_repo=True
    ).to(context.device)

    def rate(pcm: NDArray[np.float32]) -> float:
        with torch.inference_mode():
            return float(model(torch.from_numpy(pcm)[None].to(context.device), SAMPLE_RATE))

    return rate


OPINION = [
    SpeechJudge(
        name="utmos",
        kind="opinion",
        summary="UTMOS22 strong, by torch.hub: downloads program and model",
        version=lambda context: f"utmos22_strong, {context.model or UTMOS}",
        probe=lambda _: None,
        load=_utmos,
        rank=20,
    ),
    SpeechJudge(
        name="dnsmos",
        kind="opinion",
        summary="DNSMOS P.835 overall, whose weights come with the package",
        version=version_of("speechmos", "sig_bak_ovr.onnx"),
        probe=needs("speechmos", "pip install speechmos"),
        load=_dnsmos,
        rank=10,
    ),
]
