"""OpenAI's own client against ``/v1/audio/speech``."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import openai
import pytest
import soundfile

from megatalker.serving.audio import to_pcm16
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with
from waiting import HANG_S


def client(served: Served, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key=key, timeout=HANG_S, max_retries=0)


def test_it_lists_models_and_writes_files(serve: Server, tmp_path: Path) -> None:
    served = serve()
    with client(served) as sdk:
        (model,) = sdk.models.list().data
        sdk.audio.speech.create(
            model=model.id, voice="ryan", input=TEXT, response_format="wav", extra_body={"seed": 5}
        ).write_to_file(tmp_path / "speech.wav")
    samples, _ = soundfile.read(tmp_path / "speech.wav", dtype="int16")
    expected = to_pcm16(served.engine.speak(TEXT, voice="ryan", seed=5).read_all())
    np.testing.assert_array_equal(samples, np.frombuffer(expected, "<i2"))


def test_it_streams(serve: Server) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)))

    async def listen() -> list[int]:
        async with (
            openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="any", timeout=HANG_S) as sdk,
            sdk.audio.speech.with_streaming_response.create(
                model="tiny_custom_voice", voice="ryan", input=TEXT, response_format="pcm"
            ) as response,
        ):
            sizes = []
            async for part in response.iter_bytes():
                sizes.append(len(part))
                more.set()
            return sizes

    sizes = asyncio.run(listen())
    assert sizes[0] == 1920 * 2
    assert sum(sizes) == 30 * 1920 * 2


def test_events_are_understood(serve: Server) -> None:
    served = serve()
    with (
        client(served) as sdk,
        sdk.audio.speech.with_streaming_response.create(
            model="tiny_custom_voice", voice="ryan", input=TEXT, response_format="pcm", stream_format="sse"
        ) as response,
    ):
        lines = list(response.iter_lines())
    assert any('"speech.audio.delta"' in line for line in lines)
    assert '"speech.audio.done"' in [line for line in lines if line][-1]


def test_errors_are_its_own_classes_with_our_words(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, max_streams=1, max_waiting=0, server={"api_key": "secret"})
    speech = client(served, "secret").audio.speech
    with pytest.raises(openai.BadRequestError, match="unknown speaker 'alloy'"):
        speech.create(model="tiny_custom_voice", voice="alloy", input=TEXT)
    with pytest.raises(openai.NotFoundError, match="model is 'tts-1', expected 'tiny_custom_voice'"):
        speech.create(model="tts-1", voice="ryan", input=TEXT)
    with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
        client(served, "wrong").models.list()
    with served.engine.speak(TEXT) as occupant:
        next(occupant)
        with pytest.raises(openai.RateLimitError, match="try again") as refused:
            speech.create(model="tiny_custom_voice", voice="ryan", input=TEXT)
    assert refused.value.type == "CapacityError"
