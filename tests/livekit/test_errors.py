"""Errors that the framework gets when the engine cannot speak: kind, status, whether to retry; and its reaction."""

import asyncio
import threading
from typing import Any

import pytest
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError, APITimeoutError, tts
from livekit.agents.tts import TTSError

from fake_backend import Behaviour, Fakes
from livekit_stage import collect, say, tts_class
from megatalker import Checkpoint, Settings
from megatalker.engine import Engine
from megatalker.errors import (
    BackendFaultError,
    BackendNotFoundError,
    CapacityError,
    CheckpointError,
    ConnectionFailedError,
    EngineClosedError,
    InvalidRequestError,
    MegatalkerError,
    UnsupportedError,
)
from megatalker_livekit import TTS
from megatalker_livekit.errors import api_error
from serving import serving
from session_stage import FRAMES, engine_on, fakes
from waiting import HANG_S, eventually

BYTES = FRAMES * 1920 * 2
AT_ONCE = APIConnectOptions(max_retry=2, retry_interval=0.0)


@pytest.mark.parametrize(
    ("error", "kind", "status", "retryable"),
    [
        (ConnectionFailedError("x"), APIConnectionError, None, True),
        (CapacityError("x"), APIStatusError, 429, True),
        (BackendFaultError("x"), APIStatusError, 500, True),
        (EngineClosedError("x"), APIStatusError, 503, True),
        (InvalidRequestError("x"), APIStatusError, 400, False),
        (UnsupportedError("x"), APIStatusError, 400, False),
        (CheckpointError("x"), APIStatusError, 400, False),
        (BackendNotFoundError("x"), APIStatusError, 400, False),
    ],
)
def test_every_error_has_its_kind(
    error: MegatalkerError, kind: type[APIError], status: int | None, retryable: bool
) -> None:
    told = api_error(error)
    assert (type(told), getattr(told, "status_code", None), told.retryable) == (kind, status, retryable)
    assert "x" in str(told)
    assert not api_error(error, again=False).retryable


def at_once(speaker: TTS, **options: Any) -> tts.ChunkedStream:
    return speaker.synthesize("Hello there.", **{"conn_options": AT_ONCE} | options)


def written(speaker: TTS, **options: Any) -> tts.SynthesizeStream:
    return say(speaker, "Hello there.", **{"conn_options": AT_ONCE} | options)


WAYS = (at_once, written)


async def refused(stream: tts.ChunkedStream | tts.SynthesizeStream) -> APIError:
    with pytest.raises(APIError) as caught:
        await collect(stream)
    return caught.value


def failures_of(speaker: TTS) -> list[TTSError]:
    failures: list[TTSError] = []
    speaker.on("error", failures.append)
    return failures


@pytest.mark.asyncio
async def test_an_impossible_request_is_not_tried_again(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        speaker = TTS(engine=engine, voice="nobody")
        failures = failures_of(speaker)
        for ask in WAYS:
            error = await refused(ask(speaker))
            assert isinstance(error, APIStatusError)
            assert error.status_code == 400
            assert "unknown speaker 'nobody'" in error.message
        assert [failure.recoverable for failure in failures] == [False, False]


@pytest.mark.asyncio
@pytest.mark.parametrize("ask", WAYS)
async def test_a_full_engine_is_asked_again(tiny_custom_voice: Checkpoint, ask: Any) -> None:
    with engine_on(fakes(frames=None), tiny_custom_voice, max_open=1) as engine:
        speaker = TTS(engine=engine)
        failures = failures_of(speaker)
        held = engine.speak("On and on.")

        def make_room(_: object) -> None:
            held.cancel()
            eventually(lambda: not engine.metrics().active, "it has ended")

        speaker.on("error", make_room)
        stream = ask(speaker)
        await anext(stream)
        await stream.aclose()
        assert isinstance(failures[0].error, APIStatusError)
        assert (failures[0].error.status_code, failures[0].recoverable) == (429, True)


@pytest.mark.asyncio
async def test_a_server_that_is_away() -> None:
    speaker = TTS(server_url="http://127.0.0.1:9")
    failures = failures_of(speaker)
    for ask in WAYS:
        error = await refused(ask(speaker))
        assert isinstance(error, APIConnectionError)
        assert error.retryable
    assert [failure.recoverable for failure in failures] == [True, True, False] * 2
    await speaker.aclose()


@pytest.mark.asyncio
async def test_requests_that_only_the_server_can_refuse(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes()) as served:
        speaker = TTS(server_url=served.url, voice="nobody")
        for ask in WAYS:
            error = await refused(ask(speaker))
            assert isinstance(error, APIStatusError)
            assert error.status_code == 400
        await speaker.aclose()


class OnFire:
    """Fails until it is put out."""

    burning = True

    def __call__(self, call: int) -> None:
        if self.burning:
            raise RuntimeError("the device is on fire")


@pytest.mark.asyncio
@pytest.mark.parametrize("ask", WAYS)
async def test_a_shared_engine_that_is_gone_is_replaced(tiny_custom_voice: Checkpoint, ask: Any) -> None:
    fire = OnFire()
    speaker = tts_class(fakes(on_decode=fire), tiny_custom_voice)()
    failures = failures_of(speaker)
    dead = speaker.lease()
    speaker.on("error", lambda _: setattr(fire, "burning", False))
    heard = await collect(ask(speaker))
    assert len(heard) >= BYTES
    (failure,) = failures
    assert isinstance(failure.error, APIStatusError)
    assert (failure.error.status_code, failure.recoverable) == (500, True)
    assert speaker.lease() is not dead
    assert dead.released
    await speaker.aclose()


@pytest.mark.asyncio
async def test_the_caller_s_own_engine_that_is_gone_is_not_asked_again(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(on_decode=OnFire()), tiny_custom_voice) as engine:
        speaker = TTS(engine=engine)
        failures = failures_of(speaker)
        for ask in WAYS:
            error = await refused(ask(speaker))
            assert "on fire" in error.message
            assert not error.retryable
        assert [failure.recoverable for failure in failures] == [False, False]


@pytest.mark.asyncio
async def test_speech_that_has_begun_is_not_begun_again(tiny_custom_voice: Checkpoint) -> None:
    fire = OnFire()
    for ask in WAYS:
        begun = threading.Event()
        at_last = fakes(on_decode=lambda call, begun=begun: call >= 5 and begun.wait(HANG_S) and fire(call))
        speaker = tts_class(at_last, tiny_custom_voice)(engine_settings=Settings(max_chunk_frames=1))
        stream = ask(speaker)
        heard = [await anext(stream)]
        begun.set()
        with pytest.raises(APIStatusError) as caught:
            heard += [event async for event in stream]
        assert not caught.value.retryable
        assert sum(event.frame.duration for event in heard) <= 5 * 0.08
        await stream.aclose()
        await speaker.aclose()


@pytest.mark.asyncio
async def test_an_engine_that_cannot_be_loaded(tiny_custom_voice: Checkpoint) -> None:
    attempts: list[int] = []

    def load() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("out of memory")

    speaker = tts_class(Fakes(talkers={"fake": Behaviour(frames=FRAMES, on_load=load)}), tiny_custom_voice)()
    error = await refused(say(speaker, "Hello.", conn_options=AT_ONCE))
    assert "out of memory" in str(error)
    assert len(await collect(say(speaker, "Hello."))) >= BYTES, "the next utterance loads it anew"
    await speaker.aclose()


@pytest.mark.asyncio
async def test_an_engine_that_is_silent_for_too_long(tiny_custom_voice: Checkpoint) -> None:
    let_go = threading.Event()
    plug_in = fakes(on_decode=lambda _: bool(let_go.wait(60)))
    with engine_on(plug_in, tiny_custom_voice, step_deadline_s=100.0) as engine:
        speaker = TTS(engine=engine)
        try:
            for ask in WAYS:
                error = await refused(ask(speaker, conn_options=APIConnectOptions(max_retry=0, timeout=0.05)))
                assert isinstance(error, APITimeoutError)
                assert "no speech for 0.05 s" in error.message
        finally:
            let_go.set()


@pytest.mark.asyncio
async def test_a_pause_in_the_text_is_no_silence_of_the_engine(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        stream = TTS(engine=engine).stream(conn_options=APIConnectOptions(max_retry=0, timeout=1.0))
        stream.push_text("A very good morning ")
        await anext(stream)
        await asyncio.sleep(1.5)
        stream.push_text("to you.")
        stream.end_input()
        assert await collect(stream)


def test_a_feeder_that_fails_ends_the_speech_with_its_error(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the text never comes then, and nobody may wait for it."""

    async def fail(*_: object) -> None:
        raise KeyError("a bug")

    async def main(engine: Engine) -> None:
        stream = TTS(engine=engine).stream(conn_options=APIConnectOptions(max_retry=0))
        monkeypatch.setattr(type(stream), "_feed_rest", fail)
        stream.push_text("A very good morning ")
        stream.end_input()
        with pytest.raises(KeyError, match="a bug"):
            await collect(stream)

    with engine_on(fakes(), tiny_custom_voice) as engine:
        asyncio.run(asyncio.wait_for(main(engine), HANG_S))
    assert "megatalker-feeding failed" in caplog.text
