"""Speech clients of voice-agent frameworks, unmodified: only their address is ours."""

import asyncio
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from livekit.plugins import openai as livekit_openai
from pipecat.frames.frames import TTSSpeakFrame
from pipecat.services.openai.tts import OpenAITTSService

from megatalker.checkpoint import Checkpoint
from pipecat_stage import perform
from serving import TEXT, Server, serving
from waiting import HANG_S

SPEECH_SAMPLES = 30 * 1920


@pytest.mark.parametrize(
    ("settings", "samples"),
    [
        ({}, SPEECH_SAMPLES),
        ({"voice": "verse", "speed": 2.0, "instructions": "Cheerful."}, SPEECH_SAMPLES / 2),
    ],
)
@pytest.mark.asyncio
async def test_pipecat(serve: Server, settings: dict[str, Any], samples: float) -> None:
    """By default Pipecat asks ``gpt-4o-mini-tts`` and ``alloy`` for PCM."""
    async with openai.DefaultAsyncHttpxClient() as connections:  # so that the test can close them
        service = OpenAITTSService(
            api_key="any",
            base_url=serve().url + "/v1",
            http_client=connections,
            settings=OpenAITTSService.Settings(**settings),
        )
        heard = await perform(service, [TTSSpeakFrame(TEXT)])
    assert not heard.up
    assert len(heard.audio()) / 2 == pytest.approx(samples, rel=0.02)


@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"])
@pytest.mark.parametrize("options", [{}, {"response_format": "opus"}, {"speed": 2.0, "instructions": "Cheerful."}])
def test_livekit(tiny_custom_voice: Checkpoint, model: str, options: dict[str, Any]) -> None:
    """By default LiveKit asks for MP3, in events for some models and plain for others."""

    async def heard(url: str) -> np.ndarray:
        speech = livekit_openai.TTS(base_url=url + "/v1", api_key="any", model=model, **options)
        async with speech, speech.synthesize(TEXT) as stream:
            parts = [event.frame async for event in stream]
        return np.concatenate([np.frombuffer(part.data, np.int16) for part in parts])

    with serving(tiny_custom_voice) as served:
        samples = asyncio.run(asyncio.wait_for(heard(served.url), HANG_S))
    expected = SPEECH_SAMPLES / options.get("speed", 1.0)
    assert len(samples) == pytest.approx(expected, rel=0.1)
    assert np.abs(samples).max() > 1_000


@pytest.mark.parametrize("text", ["🎉", "..."])
@pytest.mark.asyncio
async def test_a_text_without_a_sound_is_no_error_for_pipecat(serve: Server, text: str) -> None:
    async with openai.DefaultAsyncHttpxClient() as connections:
        service = OpenAITTSService(api_key="any", base_url=serve().url + "/v1", http_client=connections)
        heard = await perform(service, [TTSSpeakFrame(text), TTSSpeakFrame(TEXT)])
    assert not heard.up
    assert len(heard.audio()) / 2 == pytest.approx(SPEECH_SAMPLES, rel=0.03)


@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"])
@pytest.mark.parametrize("options", [{}, {"response_format": "wav"}, {"response_format": "pcm"}])
def test_a_text_without_a_sound_is_no_error_for_livekit(
    tiny_custom_voice: Checkpoint, model: str, options: dict[str, Any]
) -> None:
    async def heard(url: str) -> int:
        speech = livekit_openai.TTS(base_url=url + "/v1", api_key="any", model=model, **options)
        async with speech, speech.synthesize("🎉") as stream:
            return sum([event.frame.samples_per_channel async for event in stream])

    with serving(tiny_custom_voice) as served:
        samples = asyncio.run(asyncio.wait_for(heard(served.url), HANG_S))
        assert httpx.get(served.url + "/metrics").text.count("megatalker_refusals_total{") == 0
    assert 0 < samples < 24_000 / 4
