"""Wyoming by its own client library: what Home Assistant asks for, and what harms a server."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from wyoming.audio import AudioChunk, AudioStart
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeVoice,
)

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.errors import SettingsError, UnsupportedError
from megatalker.prompt.languages import NAMES
from megatalker.serving.audio import to_pcm16
from megatalker.serving.server.address import bind_wyoming, wyoming_url
from megatalker.serving.server.speech_service import UtteranceSession
from megatalker.settings import ServerSettings, Settings
from megatalker.voices import list_languages, list_speakers
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with, serving
from waiting import HANG_S, eventually

pytestmark = pytest.mark.asyncio
ANYWHERE = "tcp://127.0.0.1:0"
ON = {"wyoming": ANYWHERE}


@pytest.fixture(scope="module")
def shared(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice, server=ON) as served:
        yield served


@asynccontextmanager
async def client(served: Served) -> AsyncIterator[AsyncTcpClient]:
    made = AsyncTcpClient.from_uri(served.wyoming, connect_timeout=HANG_S, read_timeout=HANG_S)
    async with made:
        yield made


async def send(talk: AsyncTcpClient, *events: Eventable) -> None:
    for event in events:
        await talk.write_event(event.event())


async def hear(talk: AsyncTcpClient, last: str) -> list[Event]:
    """Everything up to an event of this type, or to the end of the connection."""
    heard: list[Event] = []
    while (event := await talk.read_event()) is not None:
        heard.append(event)
        if event.type == last:
            break
    return heard


def samples(events: list[Event]) -> np.ndarray:
    return np.frombuffer(b"".join(event.payload or b"" for event in events if event.type == "audio-chunk"), "<i2")


async def refusal(talk: AsyncTcpClient) -> Error:
    """The error after which the server closes."""
    heard = await hear(talk, "")
    assert heard, "it was told why"
    assert heard[-1].type == "error", heard
    return Error.from_event(heard[-1])


def watch(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[UtteranceSession]:
    """The utterances that are begun from now on."""
    begun: list[UtteranceSession] = []
    begin = served.server.service.begin

    async def watched(*arguments: Any, **options: Any) -> UtteranceSession:
        begun.append(await begin(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(served.server.service, "begin", watched)
    return begun


async def spoken(engine: Engine, *pieces: str, **wishes: Any) -> np.ndarray:
    """The engine's own speech for a text that is fed, or given whole."""
    stream = engine.speak(None if len(pieces) > 1 else pieces[0], **wishes)
    if len(pieces) > 1:
        for piece in pieces:
            stream.feed(piece)
        stream.finish()
    return np.frombuffer(b"".join([to_pcm16(chunk.pcm) async for chunk in stream]), "<i2")


# ---- what it does


async def test_info_has_voices_and_languages(shared: Served) -> None:
    async with client(shared) as talk:
        await send(talk, Describe())
        (event,) = await hear(talk, "info")
        (program,) = Info.from_event(event).tts
        assert [voice.name for voice in program.voices] == list_speakers(shared.engine.checkpoint)
        spoken_ones = {NAMES[code] for code in program.voices[0].languages}
        assert {"auto", *spoken_ones} == set(list_languages(shared.engine.checkpoint))
        assert all(voice.installed and voice.languages == program.voices[0].languages for voice in program.voices)
        assert program.supports_synthesize_streaming
        await send(talk, Ping(text="still there?"))
        (event,) = await hear(talk, "pong")
        assert Pong.from_event(event).text == "still there?"


async def test_a_text_is_spoken_as_by_the_engine(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(fakes_with(), server=ON)
    begun = watch(served, monkeypatch)
    async with client(served) as talk:
        for voice in ("serena", "ryan"):
            await send(talk, Synthesize(text=TEXT, voice=SynthesizeVoice(name=voice)))
            heard = await hear(talk, "audio-stop")
            assert AudioStart.from_event(heard[0]) == AudioStart(rate=24_000, width=2, channels=1)
            assert AudioChunk.from_event(heard[1]).rate == 24_000
            expected = await spoken(served.engine, TEXT, voice=voice, seed=begun[-1].stream.seed)
            np.testing.assert_array_equal(samples(heard), expected)
    eventually(lambda: not served.server.service.running, "nothing runs")
    eventually(lambda: not served.server.server_state.connections, "no connection is left")


async def test_a_voice_is_chosen_by_name_alias_or_language(serve: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(fakes_with(), server={**ON, "voice_aliases": {"kitchen": "serena"}})
    begun = watch(served, monkeypatch)
    async with client(served) as talk:
        for voice in (
            SynthesizeVoice(name="kitchen"),
            SynthesizeVoice(name="megatalker", speaker="ryan"),
            SynthesizeVoice(language="en-US"),
            None,
        ):
            await send(talk, Synthesize(text=TEXT, voice=voice))
            assert samples(await hear(talk, "audio-stop")).size
    asked = [(session.asked.voice, session.asked.language) for session in begun]
    assert asked == [("serena", None), ("ryan", None), (None, "en-US"), (None, None)]


async def test_the_first_audio_comes_with_the_first_frame(serve: Server) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)), server=ON)
    async with client(served) as talk:
        await send(talk, Synthesize(text=TEXT))
        first = await hear(talk, "audio-chunk")
        more.set()
        assert len(samples(first)) == 1920, "the second frame does not exist yet"
        assert len(samples(await hear(talk, "audio-stop"))) == 29 * 1920


async def test_streamed_text_is_spoken_before_its_end(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = watch(shared, monkeypatch)
    pieces = ["Good morning, ", "this is a longer text ", "of some words."]
    async with client(shared) as talk:
        await send(talk, SynthesizeStart(), SynthesizeChunk(text=pieces[0]))
        first = await hear(talk, "audio-chunk")
        await send(talk, *(SynthesizeChunk(text=piece) for piece in pieces[1:]))
        await send(talk, Synthesize(text="".join(pieces)))  # for servers that know no streams
        await send(talk, SynthesizeStop())
        rest = await hear(talk, "synthesize-stopped")
        assert [event.type for event in rest].count("audio-stop") == 1
        expected = await spoken(shared.engine, *pieces, seed=begun[0].stream.seed)
        np.testing.assert_array_equal(samples(first + rest), expected)
        await send(talk, Synthesize(text=TEXT))
        assert samples(await hear(talk, "audio-stop")).size, "the connection goes on"


async def test_a_text_without_a_sound_is_a_moment_of_silence(shared: Served) -> None:
    async with client(shared) as talk:
        await send(talk, Synthesize(text="🎉"))
        heard = samples(await hear(talk, "audio-stop"))
    assert len(heard) == 480
    assert not heard.any()


async def test_events_that_are_unknown_are_left_out(shared: Served) -> None:
    async with client(shared) as talk:
        await talk.write_event(Event("transcribe", {"language": "en"}, b"abc"))
        await talk.write_event(Event("audio-chunk", {"rate": 16_000}, bytes(4_000)))
        await send(talk, Describe())
        assert [event.type for event in await hear(talk, "info")] == ["info"]


# ---- what ends


async def test_a_client_that_goes_away_ends_its_speech(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, server=ON, **ENDLESS)
    async with client(served) as talk:
        await send(talk, Synthesize(text=TEXT))
        await hear(talk, "audio-chunk")
    eventually(lambda: served.rows_free(fakes), "its rows are free")
    eventually(lambda: not served.server.service.running, "its account is closed")


async def test_a_client_that_goes_away_before_its_text_ends(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, server=ON, **ENDLESS)
    async with client(served) as talk:
        await send(talk, SynthesizeStart(), SynthesizeChunk(text=TEXT))
        await hear(talk, "audio-chunk")
    eventually(lambda: served.rows_free(fakes), "its rows are free")


async def test_speech_that_fails_is_told_and_the_connection_closes(serve: Server) -> None:
    def fail(call: int) -> None:
        if call == 3:
            raise RuntimeError("a cosmic ray")

    served = serve(fakes_with(on_decode=fail), server=ON)
    async with client(served) as talk:
        await send(talk, SynthesizeStart(), SynthesizeChunk(text=TEXT), SynthesizeStop())
        error = await refusal(talk)
    assert error.code == "BackendFaultError"


async def test_speech_that_is_cut_has_no_regular_end(serve: Server) -> None:
    served = serve(fakes_with(), server=ON, max_frames=5)
    async with client(served) as talk:
        await send(talk, Synthesize(text=TEXT))
        heard = await hear(talk, "")
    assert [event.type for event in heard][-2:] == ["audio-chunk", "error"]
    assert Error.from_event(heard[-1]).code == "IncompleteSpeechError"


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", "this is not JSON"),
        (b"[1]\n", "expected an event as a JSON object with a type"),
        (b'{"type": 7}\n', "expected an event"),
        (b'{"type": "synthesize"}\n', "its data cannot be read"),
        (b'{"type": "synthesize", "data": {"text": 7}}\n', "text is 7, expected a text"),
        (b'{"type": "synthesize", "data": {"text": "Hi.", "voice": ["x"]}}\n', "voice is ['x'], expected an object"),
        (b'{"type": "synthesize", "data": {"text": "Hi.", "voice": {"name": 1}}}\n', "voice is 1, expected the name"),
        (b'{"type": "synthesize", "data": {"text": "Hi.", "voice": {"name": "nobody"}}}\n', "nobody"),
        (b'{"type": "synthesize", "data": {"text": "  "}}\n', "text"),
        (b'{"type": "synthesize", "data": {"text": "x", "text_format": "ssml"}}\n', "text_format is 'ssml'"),
        (b'{"type": "synthesize", "data": [1]}\n', "its data should be a JSON object"),
        (b'{"type": "synthesize", "data_length": 3}\n[1]', "its data should be a JSON object"),
        (b'{"type": "x", "data_length": -1}\n', "should be numbers of bytes"),
        (b'{"type": "x", "payload_length": true}\n', "should be numbers of bytes"),
        (b'{"type": "x", "payload_length": 5000000000}\n', "max_message_bytes"),
        (b'{"type": "synthesize-chunk", "data": {"text": "x"}}\n', "send synthesize-start first"),
        (b'{"type": "synthesize-stop"}\n', "send synthesize-start first"),
        (b'{"type": "synthesize-start"}\n' * 2, "a text is open already"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
    ],
    ids=str,
)
async def test_bad_events_are_told_and_the_connection_closes(shared: Served, sent: bytes, complaint: str) -> None:
    async with client(shared) as talk:
        assert talk._writer is not None
        talk._writer.write(sent)
        error = await refusal(talk)
    assert complaint in error.text
    assert error.code == "InvalidRequestError"
    eventually(lambda: not shared.server.service.running, "nothing runs")


async def test_a_line_without_an_end_is_bounded(serve: Server) -> None:
    served = serve(fakes_with(), server={**ON, "max_message_bytes": 2_000})
    async with client(served) as talk:
        assert talk._writer is not None
        talk._writer.write(b"x" * 5_000)
        assert "more than 2000 bytes" in (await refusal(talk)).text


async def test_a_client_that_says_nothing_is_told_so(serve: Server) -> None:
    async with client(serve(fakes_with(), server={**ON, "request_timeout_s": 0.05})) as talk:
        assert "no event came for 0.05 s" in (await refusal(talk)).text
    served = serve(fakes_with(), server={**ON, "text_timeout_s": 0.05})
    async with client(served) as talk:
        await send(talk, SynthesizeStart())
        assert "no text came for 0.05 s" in (await refusal(talk)).text
    eventually(lambda: not served.server.service.running, "the utterance is over")


async def test_events_that_bring_no_text_are_bounded(shared: Served) -> None:
    async with client(shared) as talk:
        assert talk._writer is not None
        talk._writer.write(b'{"type": "x"}\n' * 1_000)
        assert "more than 20 events a second" in (await refusal(talk)).text


async def test_too_many_connections(serve: Server) -> None:
    """They count together with those of HTTP; idle ones make room."""
    served = serve(endless(), server={**ON, "max_connections": 2}, **ENDLESS)
    async with client(served) as first, client(served) as second:
        for talk in (first, second):
            await send(talk, Synthesize(text=TEXT))
            await hear(talk, "audio-chunk")
        async with client(served) as third:
            assert "too many connections" in (await refusal(third)).text
        assert (await first.read_event()) is not None


async def test_an_address_with_most_connections_gives_one_up_to_another(serve: Server) -> None:
    served = serve(endless(), server={**ON, "max_connections": 3}, **ENDLESS)
    async with client(served) as first, client(served) as second, client(served) as third:
        for talk in (first, second, third):
            await send(talk, Synthesize(text=TEXT))
            await hear(talk, "audio-chunk")
        port = int(served.wyoming.rsplit(":", 1)[1])
        async with AsyncTcpClient("127.0.0.1", port, read_timeout=HANG_S) as other:
            assert other._writer is not None
            other._writer.close()
            other._reader, other._writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            await send(other, Synthesize(text=TEXT))
            assert await hear(other, "audio-chunk")
            assert "too many connections" in (await refusal(third)).text, "the newest"


async def test_too_many_utterances_of_one_address(serve: Server) -> None:
    served = serve(endless(), server=ON, max_streams_per_owner=1, **ENDLESS)
    async with client(served) as first, client(served) as second:
        await send(first, Synthesize(text=TEXT))
        await hear(first, "audio-chunk")
        await send(second, Synthesize(text=TEXT))
        assert (await refusal(second)).code == "CapacityError"


async def test_a_server_that_stops_ends_its_clients(serve: Server) -> None:
    served = serve(endless(), server=ON, **ENDLESS)
    async with client(served) as idle, client(served) as busy:
        await send(busy, Synthesize(text=TEXT))
        await hear(busy, "audio-chunk")
        stopping = asyncio.create_task(asyncio.to_thread(served.stop))
        assert (await refusal(busy)).code == "EngineClosedError"
        assert await hear(idle, "") == []
        await stopping


async def test_a_draining_server_finishes_what_is_spoken(serve: Server) -> None:
    more = threading.Event()
    served = serve(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)), server=ON)
    async with client(served) as talk:
        await send(talk, Synthesize(text=TEXT))
        heard = await hear(talk, "audio-chunk")
        served.server.service.draining = True
        async with client(served) as late:
            await send(late, Synthesize(text=TEXT))
            assert "about to stop" in (await refusal(late)).text
        more.set()
        assert len(samples(heard + await hear(talk, "audio-stop"))) == 30 * 1920


# ---- the setting


@pytest.mark.parametrize(
    "address", ["", "10200", "http://localhost:1", "tcp://:1", "tcp://x", "tcp://x:99999", "tcp://x:1/y"]
)
async def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(SettingsError, match=r"expected an address such as tcp://0\.0\.0\.0:10200"):
        Settings.read(server={"wyoming": address})


async def test_metrics_count_the_route(serve: Server) -> None:
    served = serve(fakes_with(), server=ON)
    async with client(served) as talk:
        await send(talk, Synthesize(text=TEXT))
        await hear(talk, "audio-stop")
    eventually(lambda: not served.server.service.running, "nothing runs")
    counted = served.server.service.metrics.registry.get_sample_value
    assert counted("megatalker_utterances_total", {"route": "wyoming", "finish_reason": "eos"}) == 1


async def test_an_event_may_hold_its_data_in_its_line(shared: Served) -> None:
    async with client(shared) as talk:
        assert talk._writer is not None
        talk._writer.write(json.dumps({"type": "synthesize", "data": {"text": TEXT}}).encode() + b"\n")
        assert samples(await hear(talk, "audio-stop")).size


async def test_a_missing_package_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatalker.serving.server.address.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'megatalker\[wyoming\]'"):
        bind_wyoming(ServerSettings(wyoming=ANYWHERE))


async def test_an_address_in_use_is_refused() -> None:
    with bind_wyoming(ServerSettings(wyoming=ANYWHERE)) as bound, pytest.raises(SettingsError, match="cannot serve on"):
        bind_wyoming(ServerSettings(wyoming=wyoming_url(bound)))
