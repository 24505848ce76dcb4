"""Deepgram's recogniser, over its HTTP interface; by name only, for it costs money and sends recordings away."""

import io
import json
import os
import time
import urllib.error
import urllib.request
from urllib.parse import urlencode

import numpy as np
import soundfile
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import UnsupportedError
from megatalker.plugins.judges import Hearing, JudgeContext, SpeechJudge
from megatalker_conformance.quality.judges.recognisers import CODES

KEY, URL = "DEEPGRAM_API_KEY", "https://api.deepgram.com/v1/listen"
MODEL = "nova-3"
ATTEMPTS = 5
TIMEOUT_S = 60
FIRST_WAIT_S = 1.0
"""Before the second attempt; doubled each time."""
AGAIN = (408, 429, 500, 502, 503, 504)
"""Status codes after which the same request may succeed."""


def _probe(context: JudgeContext) -> str | None:
    if not os.environ.get(KEY):
        return f"there is no key; set {KEY} in the environment"
    return None if context.language in CODES else f"it is not asked for {context.language}"


def load(context: JudgeContext, *, url: str = URL, first_wait_s: float = FIRST_WAIT_S) -> Hearing:
    """Return the recogniser; the key is read from the environment.

    Raises (when it hears):
        UnsupportedError: Deepgram refuses the request, or cannot be reached after several attempts.
    """
    query = urlencode({"model": context.model or MODEL, "language": CODES[context.language]})
    headers = {"Authorization": f"Token {os.environ[KEY]}", "Content-Type": "audio/wav"}

    def hear(pcm: NDArray[np.float32]) -> str:
        file = io.BytesIO()
        soundfile.write(file, pcm, SAMPLE_RATE, format="WAV", subtype="PCM_16")
        answer = _ask(urllib.request.Request(f"{url}?{query}", file.getvalue(), headers), first_wait_s)
        try:
            return str(json.loads(answer)["results"]["channels"][0]["alternatives"][0]["transcript"])
        except (ValueError, LookupError, TypeError) as error:
            raise UnsupportedError(f"Deepgram's answer has no transcript: {answer[:200]!r}") from error

    return hear


def _ask(request: urllib.request.Request, wait_s: float) -> bytes:
    for attempt in range(ATTEMPTS):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                told = error.read(200).decode(errors="replace")
            if error.code not in AGAIN or attempt == ATTEMPTS - 1:
                raise UnsupportedError(f"Deepgram answered {error.code}: {told}") from error
        except OSError as error:  # no connection, or one that broke
            if attempt == ATTEMPTS - 1:
                raise UnsupportedError(f"Deepgram cannot be reached: {error}") from error
        time.sleep(wait_s * 2**attempt)
    raise AssertionError  # the last attempt returns or raises


DEEPGRAM = SpeechJudge(
    name="deepgram",
    kind="recogniser",
    summary=f"Deepgram by the key in {KEY}: recordings leave this machine",
    version=lambda context: f"deepgram {context.model or MODEL}",
    probe=_probe,
    load=load,
    rank=-1,
)
