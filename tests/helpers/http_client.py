"""Requests as curl or OpenAI's client send them."""

from typing import Any

import httpx
import numpy as np

from megatalker.serving.audio import to_pcm16
from serving import TEXT, Served
from waiting import HANG_S

SPEECH = "/v1/audio/speech"


def post(served: Served, **body: Any) -> httpx.Response:
    return httpx.post(served.url + SPEECH, json={"input": TEXT} | body, timeout=HANG_S)


def pcm16(served: Served, **wishes: Any) -> np.ndarray:
    return np.frombuffer(to_pcm16(served.engine.speak(TEXT, **wishes).read_all()), "<i2")
