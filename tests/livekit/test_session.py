"""Whole conversations of the agents framework, offline: somebody talks, the agent answers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomlkit
from livekit.plugins import openai

from fake_backend import Behaviour, Fakes
from livekit_stage import LiveKitConversation, conversation, same_speech, spoken, until
from megatalker import BackendSwitch, Checkpoint, Engine, Settings
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.serving.shared_engines.pool import EnginePool
from megatalker_livekit import TTS
from serving import serving
from session_stage import FRAMES, engine_on, fakes

pytestmark = pytest.mark.asyncio

ANSWERS = {"Hello.": ["Good ", "morning, ", "sir."], "And you?": ["Very well."]}
REAL = {
    "max_frames": 6,
    "short_speech": "believe",
    "runaway_guard": False,
    "backends": {"compiled": {"compile": "off"}},
}
"""Real backends, for what is equal to the bit. Codes of fakes depend on the last bit of a text's rows, which depends on
how many of them were computed together."""


@pytest.fixture
def plug_in() -> Fakes:
    return fakes()


@pytest.fixture
def engine(plug_in: Fakes, tiny_custom_voice: Checkpoint) -> Iterator[Engine]:
    with engine_on(plug_in, tiny_custom_voice) as engine:
        yield engine


def frames(turn: bytes) -> int:
    """How long it is; what the framework puts behind is shorter than a frame."""
    return len(turn) // 2 // FRAME_SAMPLES


async def two_turns(talk: LiveKitConversation) -> list[bytes]:
    await talk.caller.says("Hello.")
    await talk.hears(1)
    await talk.caller.says("And you?")
    heard = await talk.hears(2)
    await until(lambda: len(talk.said) == 2)
    assert talk.said == ["Good morning, sir.", "Very well."]
    assert all(error.recoverable and "max_frames" in str(error.error) for error in talk.errors), "both reach the limit"
    return heard


@pytest.mark.parametrize("backend", [pytest.param("reference", marks=pytest.mark.slow), "compiled"])
async def test_the_session_plays_the_engine_s_speech_with_any_backend(
    tiny_custom_voice: Checkpoint, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OwnTTS(TTS):
        engines = EnginePool()

    monkeypatch.chdir(tmp_path)
    settings = {"checkpoint": str(tiny_custom_voice.folder), "backend": backend} | REAL
    (tmp_path / "megatalker.toml").write_text(tomlkit.dumps(settings))
    speaker = OwnTTS(seed=3)
    async with conversation(speaker, ANSWERS) as talk:
        heard = await two_turns(talk)
        engine = speaker.lease().engine
        assert isinstance(engine, Engine)
        assert engine.backend == backend
        for turn, text in zip(heard, talk.said, strict=True):
            assert same_speech(turn, await spoken(engine, text, seed=3))
    await speaker.aclose()


async def test_speech_begins_before_the_answer_is_written(engine: Engine) -> None:
    written = asyncio.Event()
    answers = {"Hello.": ["A very good morning ", written, "to you."]}
    async with conversation(TTS(engine=engine, seed=3), answers) as talk:
        await talk.caller.says("Hello.")
        await until(lambda: talk.loudspeaker.segments)
        written.set()
        (heard,) = await talk.hears(1)
    assert frames(heard) == FRAMES


async def test_an_interruption_ends_the_speech_and_the_next_turn_speaks(engine: Engine, plug_in: Fakes) -> None:
    plug_in.talkers["fake"].frames = None
    answers = {"Hello.": ["On and on and on."], "Stop.": ["And on and on."]}
    async with conversation(TTS(engine=engine), answers) as talk:
        await talk.caller.says("Hello.")
        await until(lambda: talk.loudspeaker.playing)
        await talk.caller.says("Stop.")
        await until(lambda: len(talk.loudspeaker.segments) == 2)
        await until(lambda: [turn.interrupted for turn in talk.turns] == [True])
        await until(lambda: engine.metrics().cancelled == 1)
        assert not talk.errors
    await until(lambda: not plug_in.loaded["fake"].streams)
    await until(lambda: engine.metrics().cancelled == 2)  # the end of the session ends what was being said


async def test_an_interruption_before_any_sound(engine: Engine) -> None:
    never = asyncio.Event()
    answers = {"Hello.": ["A ", never], "Stop.": ["Yes."]}
    async with conversation(TTS(engine=engine, seed=3), answers) as talk:
        await talk.caller.says("Hello.")
        await until(lambda: engine.metrics().streams == 1)
        talk.session.interrupt()
        await until(lambda: engine.metrics().cancelled == 1)
        await talk.caller.says("Stop.")
        heard = await talk.hears(1)
        await until(lambda: talk.said == ["Yes."])
    assert frames(heard[-1]) == FRAMES


async def test_a_server_speaks_as_the_engine_does(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, backend="compiled", **REAL) as served:
        speaker = TTS(server_url=served.url, seed=3)
        async with conversation(speaker, ANSWERS) as talk:
            heard = await two_turns(talk)
        for turn, text in zip(heard, talk.said, strict=True):
            assert same_speech(turn, await spoken(served.engine, text, seed=3))
        await speaker.aclose()


async def test_an_interruption_reaches_the_server(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes(frames=None)) as served:
        speaker = TTS(server_url=served.url)
        async with conversation(speaker, {"Hello.": ["On and on and on."]}) as talk:
            await talk.caller.says("Hello.")
            await until(lambda: talk.loudspeaker.playing)
            talk.session.interrupt()
            await until(lambda: served.engine.metrics().cancelled == 1)
        await speaker.aclose()


async def test_the_openai_plugin_as_it_is(tiny_custom_voice: Checkpoint) -> None:
    """With ``base_url`` of our server, the plug-in speaks; the framework splits sentences for it."""
    with serving(tiny_custom_voice, fakes()) as served:
        speaker = openai.TTS(base_url=served.url + "/v1", api_key="none", response_format="pcm")
        async with speaker, conversation(speaker, ANSWERS) as talk:
            heard = await two_turns(talk)
    assert list(map(frames, heard)) == [FRAMES, FRAMES]


async def test_a_backend_that_fails_in_mid_sentence(tiny_custom_voice: Checkpoint) -> None:
    def fail(call: int) -> None:
        if call >= 5:
            raise RuntimeError("the device is on fire")

    plug_in = Fakes(talkers={"first": Behaviour(frames=FRAMES, on_decode=fail), "second": Behaviour(frames=FRAMES)})
    switches: list[BackendSwitch] = []
    with engine_on(plug_in, tiny_custom_voice, max_chunk_frames=1) as engine:
        speaker = TTS(engine=engine, seed=3)
        speaker.on("backend_switched", switches.append)
        async with conversation(speaker, {"Hello.": ["Good morning."]}) as talk:
            await talk.caller.says("Hello.")
            (heard,) = await talk.hears(1)
    assert frames(heard) == FRAMES, "not a sample is lost"
    assert [(switch.origin, switch.target) for switch in switches] == [("first", "second")]


async def test_the_settings_of_a_session_are_those_of_its_engine(engine: Engine) -> None:
    assert (TTS(engine=engine).model, TTS(engine=engine).provider) == (engine.settings.checkpoint, "megatalker")
    assert TTS(engine_settings=Settings(checkpoint="elsewhere")).model == "elsewhere"
    assert TTS(server_url="http://localhost:1").model == "unknown"
