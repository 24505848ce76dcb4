"""OpenAI's own client against ``/v1/audio/speech``."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import av
import numpy as np
import openai
import pytest
import soundfile

from megatalker.checkpoint import Checkpoint
from megatalker.serving.audio import to_pcm16
from megatalker.voices import list_speakers
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with, serving
from waiting import HANG_S


def client(served: Served, key: str = "any") -> openai.OpenAI:
    return served.sockets.enter_context(
        openai.OpenAI(base_url=served.url + "/v1", api_key=key, timeout=HANG_S, max_retries=0)
    )


def test_it_lists_models_and_writes_files(shared: Served, tmp_path: Path) -> None:
    with client(shared) as sdk:
        (model,) = sdk.models.list().data
        sdk.audio.speech.create(
            model=model.id, voice="ryan", input=TEXT, response_format="wav", extra_body={"seed": 5}
        ).write_to_file(tmp_path / "speech.wav")
    samples, _ = soundfile.read(tmp_path / "speech.wav", dtype="int16")
    expected = to_pcm16(shared.engine.speak(TEXT, voice="ryan", seed=5).read_all())
    np.testing.assert_array_equal(samples, np.frombuffer(expected, "<i2"))


def test_it_streams(serve: Server) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)))

    async def listen() -> list[int]:
        async with (
            openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="any", timeout=HANG_S) as sdk,
            sdk.audio.speech.with_streaming_response.create(
                model="tiny_custom_voice", voice="ryan", input=TEXT, response_format="wav"
            ) as response,
        ):
            sizes = []
            async for part in response.iter_bytes():
                sizes.append(len(part))
                more.set()
            return sizes

    sizes = asyncio.run(listen())
    header = sizes[0] - 1920 * 2
    assert 44 <= header < 250, "a header, and a frame"
    assert sum(sizes) == header + 30 * 1920 * 2


def test_events_are_understood(shared: Served) -> None:
    with (
        client(shared) as sdk,
        sdk.audio.speech.with_streaming_response.create(
            model="tiny_custom_voice", voice="ryan", input=TEXT, response_format="pcm", stream_format="sse"
        ) as response,
    ):
        lines = list(response.iter_lines())
    assert any('"speech.audio.delta"' in line for line in lines)
    assert '"speech.audio.done"' in [line for line in lines if line][-1]


def test_errors_are_its_own_classes_with_our_words(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, max_streams=1, max_waiting=0, server={"api_key": "secret", "strict": True})
    speech = client(served, "secret").audio.speech
    with pytest.raises(openai.BadRequestError, match="unknown speaker 'nobody'"):
        speech.create(model="tiny_custom_voice", voice="nobody", input=TEXT)
    with pytest.raises(openai.BadRequestError, match="speed is 5") as wrong:
        speech.create(model="tiny_custom_voice", voice="ryan", input=TEXT, speed=5)
    assert (wrong.value.code, wrong.value.param) == ("bad_request", "speed")
    with pytest.raises(openai.NotFoundError, match="model is 'tts-2', expected 'tiny_custom_voice'") as unknown:
        speech.create(model="tts-2", voice="ryan", input=TEXT)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong") as keyless:
        client(served, "wrong").models.list()
    assert keyless.value.code == "invalid_api_key"
    with served.engine.speak(TEXT) as occupant:
        next(occupant)
        with pytest.raises(openai.RateLimitError, match="try again") as refused:
            speech.create(model="tiny_custom_voice", voice="ryan", input=TEXT)
    assert (refused.value.type, refused.value.code) == ("CapacityError", "rate_limit_exceeded")


# ---- as it is called by people who know OpenAI's service


@pytest.mark.parametrize("model", ["tts-1", "tts-1-hd", "gpt-4o-mini-tts", "tiny_custom_voice"])
def test_examples_of_openai_run_as_they_stand(shared: Served, tmp_path: Path, model: str) -> None:
    """No format given: a file that everything plays."""
    with (
        client(shared) as sdk,
        sdk.audio.speech.with_streaming_response.create(model=model, voice="alloy", input=TEXT) as response,
    ):
        response.stream_to_file(tmp_path / "speech.mp3")
    with av.open(tmp_path / "speech.mp3") as file:
        assert (file.format.name, file.streams.audio[0].rate) == ("mp3", 24_000)
        assert sum(frame.samples for frame in file.decode(audio=0)) == pytest.approx(30 * 1920, abs=2 * 1152)


def test_a_model_is_found_by_name_and_alias(serve: Server) -> None:
    with client(serve(server={"model": "org/ours", "model_aliases": ("theirs",)})) as sdk:
        assert sdk.models.retrieve("org/ours").id == "org/ours"
        assert sdk.models.retrieve("theirs").id == "theirs"
        with pytest.raises(openai.NotFoundError, match=r"'tts-1', expected 'org/ours'.* or one of its aliases theirs"):
            sdk.models.retrieve("tts-1")


def spoken(served: Served, **wishes: Any) -> bytes:
    with client(served) as sdk:
        return sdk.audio.speech.create(
            model="tts-1", input=TEXT, response_format="pcm", extra_body={"seed": 5}, **wishes
        ).content


def test_openai_s_voices_stand_for_ours(serve: Server) -> None:
    served = serve(voice="serena")

    def ours(voice: str) -> bytes:
        return to_pcm16(served.engine.speak(TEXT, voice=voice, seed=5).read_all())

    others = [name for name in list_speakers(served.engine.checkpoint) if name != "serena"]
    assert spoken(served, voice="alloy") == ours("serena"), "the default voice first"
    assert spoken(served, voice="ash") == spoken(served, voice={"id": "ash"}) == ours(others[0])
    assert ours("serena") != ours(others[0])


def test_aliases_of_voices_are_configured(serve: Server) -> None:
    served = serve(server={"voice_aliases": {"narrator": "ryan"}})
    assert spoken(served, voice="narrator") == spoken(served, voice="ryan")
    with client(served) as sdk, pytest.raises(openai.BadRequestError, match="unknown speaker 'alloy'"):
        sdk.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)


def test_a_voice_of_that_name_comes_before_the_alias(serve: Server) -> None:
    served = serve(server={"voice_aliases": {"ryan": "serena"}})
    assert spoken(served, voice="ryan") == to_pcm16(served.engine.speak(TEXT, voice="ryan", seed=5).read_all())


def test_where_there_are_no_voices_an_alias_is_no_voice(tiny_voice_design: Checkpoint) -> None:
    with serving(tiny_voice_design) as served:
        wishes = {"instructions": "An old sailor."}
        expected = to_pcm16(served.engine.speak(TEXT, instruct="An old sailor.", seed=5).read_all())
        assert spoken(served, voice="alloy", **wishes) == expected


def test_events_end_with_usage(shared: Served) -> None:
    with client(shared) as sdk:
        events = sdk.audio.speech.create(
            model="tts-1", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse"
        ).text
    last = json.loads(events.split("\n\n")[-2].removeprefix("data: "))
    heard = len(shared.engine.checkpoint.tokenizer.encode(TEXT).ids)
    assert last["usage"] == {"input_tokens": heard, "output_tokens": 30, "total_tokens": heard + 30}


@pytest.mark.parametrize(("checkpoint", "fate"), [("tiny_custom_voice", "ignored"), ("tiny_1b7", "followed")])
def test_it_shows_whether_instructions_are_followed(checkpoint: str, fate: str, request: pytest.FixtureRequest) -> None:
    with serving(request.getfixturevalue(checkpoint)) as served, client(served) as sdk:
        speech = sdk.audio.speech.with_raw_response
        told = speech.create(model="tts-1", voice="alloy", input=TEXT, instructions="Whisper.")
        assert told.headers["x-megatalker-instructions"] == fate
        untold = speech.create(model="tts-1", voice="alloy", input=TEXT)
        assert "x-megatalker-instructions" not in untold.headers
        (model,) = sdk.models.list().data
        assert model.model_extra is not None
        assert model.model_extra["follows_instructions"] is (fate == "followed")
        events = speech.create(
            model="tts-1", voice="alloy", input=TEXT, instructions="Whisper.", stream_format="sse"
        ).text
        assert json.loads(events.split("\n\n")[-2].removeprefix("data: "))["instructions"] == fate
        talk = served.talk()
        talk.say("open", text=TEXT, instruct="Whisper.")
        assert talk.hear_all().events[0]["instruct"] == fate
