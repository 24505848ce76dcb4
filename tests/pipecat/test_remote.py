"""The service against a running server: the same face, the same speech."""

import asyncio
from collections.abc import Iterator

import pytest
from pipecat.frames.frames import ErrorFrame, InterruptionFrame, TTSAudioRawFrame, TTSSpeakFrame, TTSUpdateSettingsFrame
from pipecat.services.tts_service import TextAggregationMode
from pipecat.utils.errors import ErrorCategory

from megatalker import Checkpoint
from megatalker.errors import SettingsError
from megatalker.serving.client import RemoteEngine
from megatalker_pipecat import EnginePool
from pipecat_stage import Entrance, in_a_thread, pcm16, perform, service_with, turn
from serving import Served, serving
from session_stage import FRAMES, fakes

pytestmark = pytest.mark.asyncio
MODES = list(TextAggregationMode)


@pytest.fixture
def served(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice, fakes()) as served:
        yield served


Service = service_with(EnginePool())


async def test_a_server_speaks_as_the_engine_does(served: Served) -> None:
    wanted = Service.Settings(voice="vivian", seed=3)
    heard = await perform(Service(server_url=served.url, settings=wanted), turn("Good morning. ", "How are you?"))
    alone = (pcm16(served.engine, text, voice="vivian", seed=3) for text in ("Good morning.", "How are you?"))
    assert heard.audio() == b"".join(alone)
    assert heard.words() == ["Good", "morning.", "How", "are", "you?"]
    assert not heard.up


async def test_token_mode(served: Served) -> None:
    service = Service(server_url=served.url, text_aggregation_mode=TextAggregationMode.TOKEN)
    heard = await perform(service, turn("Good mor", "ning to you."))
    assert heard.words() == ["Good", "morning", "to", "you."]
    assert len(heard.audio()) == 2 * FRAMES * 1920


async def test_sessions_share_a_connection(served: Served) -> None:
    heard = await asyncio.gather(*(perform(Service(server_url=served.url), turn("Hello there.")) for _ in range(4)))
    assert {len(one.audio()) for one in heard} == {2 * FRAMES * 1920}


@pytest.mark.parametrize("mode", MODES)
async def test_interruption_reaches_the_server(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    with serving(tiny_custom_voice, fakes(frames=None)) as served:

        async def hear(entrance: Entrance, frame: object) -> None:
            if isinstance(frame, TTSAudioRawFrame) and not sent:
                sent.append(frame)
                await entrance.send(InterruptionFrame())
                await entrance.end()

        sent: list[object] = []
        service = Service(server_url=served.url, text_aggregation_mode=mode)
        await perform(service, turn("On and on and on and on."), hear=hear)
        while served.engine.metrics().active:
            await asyncio.sleep(0.001)
        assert served.engine.metrics().cancelled == 1


async def test_another_voice_at_run_time(served: Served) -> None:
    change = TTSUpdateSettingsFrame(delta=Service.Settings(voice="vivian", seed=4))
    heard = await perform(Service(server_url=served.url), [change, TTSSpeakFrame("Hello.")])
    assert heard.audio() == pcm16(served.engine, "Hello.", voice="vivian", seed=4)


@pytest.mark.parametrize("delta", [{"backend": "fake"}, {"checkpoint": "demo"}, {"voice": "nobody"}])
async def test_changes_that_the_server_refuses_have_no_effect(served: Served, delta: dict[str, str]) -> None:
    service = Service(server_url=served.url, settings=Service.Settings(seed=4))
    heard = await perform(service, [TTSUpdateSettingsFrame(delta=Service.Settings(**delta)), TTSSpeakFrame("Hello.")])
    (error,) = heard.up
    assert isinstance(error, ErrorFrame)
    assert error.category is ErrorCategory.APPLICATION
    assert heard.audio() == pcm16(served.engine, "Hello.", seed=4)


async def test_a_server_that_is_away_is_a_passing_error() -> None:
    service = Service(server_url="http://127.0.0.1:9")
    heard = await perform(service, [TTSSpeakFrame("Hello.")])
    errors = [frame for frame in heard.up if isinstance(frame, ErrorFrame)]
    assert errors[0].category is ErrorCategory.CONNECTIVITY
    assert "127.0.0.1:9" in errors[0].error
    assert service.is_usable, "it may come back"


async def test_a_url_that_is_none_is_a_permanent_error() -> None:
    service = Service(server_url="not a url")
    heard = await perform(service, [])
    (error,) = heard.up
    assert isinstance(error, ErrorFrame)
    assert isinstance(error.exception, SettingsError)
    assert not service.is_usable


async def test_a_client_of_the_caller(served: Served) -> None:
    with RemoteEngine(served.url) as engine:
        heard = await perform(Service(engine=engine, settings=Service.Settings(seed=5)), [TTSSpeakFrame("Hello.")])
        assert heard.audio() == pcm16(served.engine, "Hello.", seed=5)
        assert len(in_a_thread(engine.speak("Hello.").read_all)) == FRAMES * 1920, "it is still open"
