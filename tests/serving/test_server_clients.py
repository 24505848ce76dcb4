"""Speech clients of voice-agent frameworks, unmodified: only their address is ours."""

import asyncio
from typing import Any

import numpy as np
import pytest
from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame
from pipecat.services.openai.tts import OpenAITTSService

from megatalker.checkpoint import Checkpoint
from serving import TEXT, Server, serving
from waiting import HANG_S

SPEECH_SAMPLES = 30 * 1920


def test_pipecat(serve: Server) -> None:
    """Its defaults: ``gpt-4o-mini-tts``, ``alloy``, PCM; and what its settings add."""
    served = serve()

    async def heard(**settings: Any) -> bytes:
        service = OpenAITTSService(
            api_key="any", base_url=served.url + "/v1", settings=OpenAITTSService.Settings(**settings)
        )
        service._sample_rate = 24_000  # which a pipeline tells it at its start
        try:
            frames = [frame async for frame in service.run_tts(TEXT, "context")]
        finally:
            await service._client.close()
        assert not [frame for frame in frames if isinstance(frame, ErrorFrame)]
        return b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))

    assert len(asyncio.run(heard())) == 2 * SPEECH_SAMPLES
    hurried = asyncio.run(heard(voice="verse", speed=2.0, instructions="Cheerful."))
    assert len(hurried) == pytest.approx(SPEECH_SAMPLES, rel=0.02)


@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"])
@pytest.mark.parametrize("options", [{}, {"response_format": "opus"}, {"speed": 2.0, "instructions": "Cheerful."}])
def test_livekit(tiny_custom_voice: Checkpoint, model: str, options: dict[str, Any]) -> None:
    """Its defaults are MP3, in events for some models and plain for others."""
    livekit = pytest.importorskip("livekit.plugins.openai")

    async def heard(url: str) -> np.ndarray:
        speech = livekit.TTS(base_url=url + "/v1", api_key="any", model=model, **options)
        async with speech, speech.synthesize(TEXT) as stream:
            parts = [event.frame async for event in stream]
        return np.concatenate([np.frombuffer(part.data, np.int16) for part in parts])

    with serving(tiny_custom_voice) as served:
        samples = asyncio.run(asyncio.wait_for(heard(served.url), HANG_S))
    expected = SPEECH_SAMPLES / options.get("speed", 1.0)
    assert len(samples) == pytest.approx(expected, rel=0.1)
    assert np.abs(samples).max() > 1_000
