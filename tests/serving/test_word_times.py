"""Estimated word times over HTTP events, WebSockets and the client; off unless asked for."""

import asyncio
import base64
from typing import Any

import httpx
import openai
import pytest
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from client_stage import Pair
from megatalker.engine.speech.word_times import SpokenWord
from megatalker_livekit import TTS
from serving import TEXT, Served, Server, events_of, fakes_with

FIRST, SECOND = "One two three four.", "Five six seven eight."


def assert_told(words: list[dict[str, Any]], text: str, audio_s: float) -> None:
    told = "".join(word["before"] + word["word"] for word in words)
    assert told == text.replace("\n\n", " \n\n"), "white space is that of the clean text"
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert all(0 <= time <= audio_s for time in times)


@pytest.mark.parametrize("speed", [1.0, 2.0])
@pytest.mark.parametrize("text", [TEXT, f"{FIRST}\n\n{SECOND}", "你好，世界。"])  # noqa: RUF001 - Chinese is meant
def test_events_of_openai_s_route(serve: Server, text: str, speed: float) -> None:
    events = events_of(serve(max_segment_chars=24), input=text, word_timestamps=True, speed=speed)
    kinds = [event["type"] for event in events]
    assert kinds[-1] == "speech.audio.done"
    assert set(kinds) == {"speech.audio.delta", "speech.audio.words", "speech.audio.done"}
    told = [event for event in events if event["type"] == "speech.audio.words"]
    assert all(event["estimated"] is True for event in told)
    sound = b"".join(base64.b64decode(event["audio"]) for event in events if "audio" in event)
    assert_told([word for event in told for word in event["words"]], text, len(sound) / 48_000)
    assert len(told) > 1 or len(text) < 10


def test_openai_s_client_hears_nothing_of_it_unless_it_asks(shared: Served) -> None:
    assert {event["type"] for event in events_of(shared)} == {"speech.audio.delta", "speech.audio.done"}
    with (
        openai.OpenAI(base_url=shared.url + "/v1", api_key="any", max_retries=0) as sdk,
        sdk.audio.speech.with_streaming_response.create(
            model="tts-1",
            voice="alloy",
            input=TEXT,
            response_format="pcm",
            stream_format="sse",
            extra_body={"word_timestamps": True},
        ) as response,
    ):
        lines = [line for line in response.iter_lines() if line]
    assert any('"speech.audio.words"' in line for line in lines)


def test_word_times_have_no_place_in_plain_audio(shared: Served) -> None:
    answer = httpx.post(shared.url + "/v1/audio/speech", json={"input": TEXT, "word_timestamps": True})
    assert answer.status_code == 400
    assert '"stream_format": "sse"' in answer.json()["error"]["message"]


@pytest.mark.parametrize("pieces", [None, [TEXT], list(TEXT), [TEXT[:7], TEXT[7:]]])
def test_a_websocket(serve: Server, pieces: list[str] | None) -> None:
    talk = serve(fakes_with(frames=60)).talk()
    talk.say("open", id="a", text=TEXT if pieces is None else None, word_times=True)
    for piece in pieces or ():
        talk.say("text", id="a", text=piece)
    if pieces is not None:
        talk.say("finish", id="a")
    heard = talk.hear_all("a")
    told = [event for event in heard.events if event["type"] == "words"]
    assert all(event["estimated"] is True and event["id"] == "a" for event in told)
    assert_told([word for event in told for word in event["words"]], TEXT, len(heard.pcm("a")) / 24_000)
    assert len(told) > 1


def test_a_websocket_that_does_not_ask_hears_of_no_words(shared: Served) -> None:
    talk = shared.talk()
    talk.say("open", text=TEXT)
    assert {event["type"] for event in talk.hear_all().events} == {"opened", "done"}


def test_words_beyond_a_limit_of_frames_are_not_told(serve: Server) -> None:
    talk = serve(fakes_with(frames=None), max_segment_chars=24).talk()
    talk.say("open", text=f"{FIRST} {SECOND}", word_times=True, max_frames=8)
    heard = talk.hear_all()
    said = [word["word"] for event in heard.events if event["type"] == "words" for word in event["words"]]
    assert said == FIRST.split()[: len(said)]
    assert len(said) < 4


def test_the_client_passes_them_on(connect: Pair) -> None:
    served, remote = connect()
    stream = remote.speak(TEXT, seed=5, word_times=True)
    far, taken = list[SpokenWord](), 0
    for chunk in stream:
        taken += chunk.frames
        far += stream.take_words()
        assert all(word.ends_s <= taken * 0.08 for word in far)
    far += stream.take_words()
    assert "".join(word.before + word.text for word in far) == TEXT
    near = served.engine.speak(TEXT, seed=5, word_times=True)
    near.read_all()
    assert [word.text for word in near.take_words()] == [word.text for word in far]
    silent = remote.speak(TEXT)
    silent.read_all()
    assert silent.take_words() == []


def test_livekit_speaks_through_a_server_with_word_times(connect: Pair) -> None:
    _, remote = connect()

    async def transcript() -> str:
        speaker = TTS(engine=remote)
        async with speaker.synthesize(TEXT) as speech:
            return "".join(
                [str(word) async for event in speech for word in event.frame.userdata[USERDATA_TIMED_TRANSCRIPT]]
            )

    assert asyncio.run(transcript()) == TEXT
