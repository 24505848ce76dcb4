"""The plugin by itself: streams, options, the engine's life, metrics."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from livekit.agents import APIStatusError, Plugin
from livekit.agents.metrics import TTSMetrics
from livekit.agents.tts import TTSError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString

from fake_backend import Fakes, ends_after
from livekit_stage import collect, conversation, same_speech, say, until
from megatalker import Checkpoint, Engine, Settings, SpeechOptions
from megatalker.errors import InvalidRequestError, SettingsError
from megatalker.serving.audio import to_pcm16
from megatalker.serving.samples import SampleEncoder
from megatalker.serving.shared_engines.pool import EnginePool
from megatalker_livekit import TTS
from session_stage import FRAMES, engine_on, fakes

pytestmark = pytest.mark.asyncio
BYTES = FRAMES * 1920 * 2


@pytest.fixture
def engine(tiny_custom_voice: Checkpoint) -> Iterator[Engine]:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        yield engine


async def whole(engine: Engine, text: str, **options: Any) -> bytes:
    return b"".join([to_pcm16(chunk.pcm) async for chunk in engine.speak(text, **options)])


# ---- streams


async def test_a_text_that_is_complete(engine: Engine) -> None:
    speaker = TTS(engine=engine, seed=3)
    assert same_speech(await collect(speaker.synthesize("Hello there.")), await whole(engine, "Hello there.", seed=3))


@pytest.mark.parametrize("rate", [8_000, 48_000])
async def test_another_rate(engine: Engine, rate: int) -> None:
    speaker, encoder = TTS(engine=engine, seed=3, sample_rate=rate), SampleEncoder(rate=rate)
    expected = b"".join([encoder.encode(chunk.pcm) async for chunk in engine.speak("Hello there.", seed=3)])
    expected += encoder.finish()
    heard = await collect(speaker.synthesize("Hello there."))
    assert speaker.sample_rate == rate
    assert heard[: len(expected)] == expected
    assert heard[len(expected) :] in (b"", bytes(rate // 50))


async def test_a_rate_that_is_not_made_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="sample_rate is 12000"):
        TTS(sample_rate=12_000)


async def test_a_text_that_is_being_written(engine: Engine) -> None:
    stream = TTS(engine=engine).stream()
    stream.push_text("A very good morning ")
    first = await anext(stream)
    assert (first.frame.sample_rate, first.frame.num_channels) == (24_000, 1)
    stream.push_text("to you.")
    stream.end_input()
    assert len(bytes(first.frame.data)) + len(await collect(stream)) == pytest.approx(BYTES, abs=480)


async def test_a_flush_ends_the_text(engine: Engine) -> None:
    stream = TTS(engine=engine).stream()
    stream.flush()
    stream.push_text("Hello there.")
    stream.flush()
    async with asyncio.timeout(10):
        last = [event async for event in stream][-1]
    assert last.is_final
    await stream.aclose()


@pytest.mark.parametrize("text", ["🙂", "...", " - "])
async def test_a_text_with_nothing_to_say_is_a_moment_of_silence(engine: Engine, text: str) -> None:
    speaker, failures = TTS(engine=engine), list[TTSError]()
    speaker.on("error", failures.append)
    for stream in (speaker.synthesize(text), say(speaker, text)):
        heard = await collect(stream)
        assert heard == bytes(len(heard))
        assert 0 < len(heard) < 2_000
    assert not failures


async def test_no_text_asks_nothing_of_the_engine(engine: Engine) -> None:
    assert await collect(say(TTS(engine=engine))) == b""
    assert engine.metrics().streams == 0


async def test_a_piece_that_cannot_be_said_is_left_out_and_reported(engine: Engine) -> None:
    speaker, failures = TTS(engine=engine, clean_text=False), list[TTSError]()
    speaker.on("error", failures.append)
    assert len(await collect(say(speaker, "Good ", "bad\0", "morning."))) >= BYTES
    (failure,) = failures
    assert failure.recoverable
    assert "NUL character" in str(failure.error)


async def test_metrics_are_the_framework_s(engine: Engine) -> None:
    speaker, collected = TTS(engine=engine), list[TTSMetrics]()
    speaker.on("metrics_collected", collected.append)
    await collect(speaker.synthesize("Hello there."))
    await collect(say(speaker, "Hello ", "there."))
    for metrics, streamed in zip(collected, (False, True), strict=True):
        assert metrics.streamed is streamed
        assert 0 < metrics.ttfb <= metrics.duration
        assert metrics.audio_duration == pytest.approx(FRAMES * 0.08, abs=0.011)
        assert (metrics.characters_count, metrics.cancelled) == (12, False)
        assert metrics.metadata is not None
        assert metrics.metadata.model_provider == "megatalker"


# ---- options


async def test_options_change_from_the_next_utterance_on(engine: Engine) -> None:
    speaker = TTS(engine=engine, seed=3)
    before = speaker.synthesize("Hello.")
    await anext(before)
    speaker.update_options(voice="vivian:0.6+ryan:0.4", language="de-AT", seed=4)
    expected = await whole(engine, "Hello.", voice="vivian:0.6+ryan:0.4", language="german", seed=4)
    assert same_speech(await collect(speaker.synthesize("Hello.")), expected)
    await before.aclose()
    speaker.update_options(voice=None)
    assert speaker.options == SpeechOptions(language="de-AT", seed=4)


@pytest.mark.parametrize("language", ["auto", "german", "beijing_dialect", None])
async def test_the_engine_s_own_languages_are_left_as_they_are(engine: Engine, language: str | None) -> None:
    assert TTS(engine=engine, language=language).options.language == language


async def test_options_that_do_not_exist_are_refused_by_name(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="no option 'speed'"):
        TTS(engine=engine, speed=1.2)
    with pytest.raises(SettingsError, match="engine and server_url were given"):
        TTS(engine=engine, server_url="http://localhost:1")


# ---- the engine's life


class Opening:
    """Opens engines on fakes once it is let."""

    def __init__(self, plug_in: Fakes, checkpoint: Checkpoint) -> None:
        self.plug_in, self.checkpoint, self.let = plug_in, checkpoint, threading.Event()
        self.engines: list[Engine] = []

    def __call__(self, settings: Settings) -> Engine:
        assert self.let.wait(60)
        self.engines.append(Engine.open(settings, checkpoint=self.checkpoint, registry=self.plug_in.registry))
        return self.engines[-1]


@pytest.fixture
def opening(tiny_custom_voice: Checkpoint) -> Iterator[Opening]:
    opening = Opening(fakes(), tiny_custom_voice)
    yield opening
    for engine in opening.engines:
        engine.close()


@pytest.fixture
def late_tts(opening: Opening) -> type[TTS]:
    class LateTTS(TTS):
        engines = EnginePool(opening)

    return LateTTS


async def test_prewarm_waits_for_nothing_and_needs_no_event_loop(late_tts: type[TTS], opening: Opening) -> None:
    speaker = late_tts()
    await asyncio.to_thread(speaker.prewarm)
    speaker.prewarm()
    stream = say(speaker, "Hello there.")
    opening.let.set()
    assert len(await collect(stream)) >= BYTES
    assert len(opening.engines) == 1
    await speaker.aclose()


async def test_instances_share_an_engine_which_the_last_one_closes(late_tts: type[TTS], opening: Opening) -> None:
    opening.let.set()
    first, second = late_tts(), late_tts(voice="vivian")
    await asyncio.gather(*(collect(say(speaker, "Hello.")) for speaker in (first, second)))
    (engine,) = opening.engines
    await first.aclose()
    assert engine.failure is None
    await second.aclose()
    assert engine.failure is not None, "it is closed"


async def test_speech_that_is_cancelled_while_the_engine_loads_leaves_it_loading(
    late_tts: type[TTS], opening: Opening
) -> None:
    speaker = late_tts()
    impatient = say(speaker, "Hello.")
    await asyncio.sleep(0)
    await impatient.aclose()
    opening.let.set()
    assert len(await collect(say(speaker, "Hello."))) >= BYTES
    assert len(opening.engines) == 1
    await speaker.aclose()


async def test_closing_it_ends_all_speech_and_leaves_an_engine_of_the_caller_s_open(
    tiny_custom_voice: Checkpoint,
) -> None:
    plug_in = fakes(frames=None)
    with engine_on(plug_in, tiny_custom_voice) as engine:
        speaker = TTS(engine=engine)
        streams = [speaker.synthesize("On and on."), say(speaker, "On and on.")]
        for stream in streams:
            await anext(stream)
        await speaker.aclose()
        await until(lambda: not plug_in.loaded["fake"].streams and engine.metrics().cancelled == len(streams))
        assert engine.failure is None


@pytest.mark.parametrize(
    "make", [lambda speaker: speaker.synthesize("On and on."), lambda speaker: say(speaker, "On.")]
)
async def test_closing_a_stream_frees_its_row(tiny_custom_voice: Checkpoint, make: Callable[[TTS], Any]) -> None:
    plug_in = fakes(frames=None)
    with engine_on(plug_in, tiny_custom_voice) as engine:
        stream = make(TTS(engine=engine))
        await anext(stream)
        await stream.aclose()
        await until(lambda: not plug_in.loaded["fake"].streams and engine.metrics().cancelled == 1)
        assert engine.metrics().errors == 0


async def test_files_are_downloaded_for_the_checkpoint_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("MEGATALKER_CHECKPOINT", "org/voice")
    monkeypatch.setattr("megatalker.Checkpoint.open", opened.append)
    (plugin,) = (plugin for plugin in Plugin.registered_plugins if plugin.package == "megatalker_livekit")
    plugin.download_files()
    assert opened == ["org/voice"]


# ---- text that is left unsaid

FOUR = "The first one is here. A second one follows. Then the third is said. The fourth ends it."


@pytest.mark.parametrize("written", [False, True])
async def test_text_that_is_left_out_is_an_error_after_all_that_was_spoken(
    tiny_custom_voice: Checkpoint, written: bool
) -> None:
    with engine_on(ends_after(None), tiny_custom_voice, max_segment_frames=25, max_segment_chars=24) as engine:
        speaker, failures = TTS(engine=engine), list[TTSError]()
        speaker.on("error", failures.append)
        stream, heard = say(speaker, FOUR) if written else speaker.synthesize(FOUR), b""
        with pytest.raises(APIStatusError, match="leaves out about") as raised:  # noqa: PT012 - while it is listened to
            async for event in stream:
                heard += bytes(event.frame.data)
        assert not raised.value.retryable, "the user would hear everything twice"
        assert len(heard) >= (3 if written else 4) * 25 * 1920 * 2
        assert [failure.recoverable for failure in failures] == [False]


@pytest.mark.usefixtures("short_speech_is_repeated")
async def test_text_without_any_audio_is_tried_again(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(ends_after(0, 0, 25), tiny_custom_voice) as engine:
        heard = await collect(TTS(engine=engine).synthesize("Good morning, sir."))
    assert len(heard) >= 25 * 1920 * 2


async def test_a_bound_in_the_settings_is_told_by_the_event(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(ends_after(None), tiny_custom_voice, max_frames=25) as engine:
        speaker, failures = TTS(engine=engine), list[TTSError]()
        speaker.on("error", failures.append)
        assert len(await collect(say(speaker, FOUR))) >= 25 * 1920 * 2
    (failure,) = failures
    assert failure.recoverable
    assert "max_frames" in str(failure.error)


# ---- word times


@pytest.mark.parametrize("pieces", [("Good morning to you.",), ("Good ", "mor", "ning to", " you.")])
async def test_words_come_with_the_audio_and_estimates_of_their_times(
    tiny_custom_voice: Checkpoint, pieces: tuple[str, ...]
) -> None:
    with engine_on(fakes(frames=40), tiny_custom_voice) as engine:
        speaker = TTS(engine=engine)
        assert speaker.capabilities.aligned_transcript
        for stream in (say(speaker, *pieces), speaker.synthesize("".join(pieces))):
            words, heard_s = list[TimedString](), 0.0
            async for event in stream:
                heard_s += event.frame.duration
                words += event.frame.userdata[USERDATA_TIMED_TRANSCRIPT]
            assert "".join(words) == "Good morning to you."
            times = [time for word in words for time in (word.start_time, word.end_time)]
            assert times == sorted(times)
            assert times[0] >= 0
            assert times[-1] <= heard_s
            await stream.aclose()


async def test_words_that_were_not_said_are_in_no_transcript(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(frames=None), tiny_custom_voice) as engine:
        stream = TTS(engine=engine, max_frames=8).synthesize("One two three four five six seven.")
        words = [word async for event in stream for word in event.frame.userdata[USERDATA_TIMED_TRANSCRIPT]]
        await stream.aclose()
    said = "".join(words).split()
    assert said == ["One", "two", "three", "four", "five", "six", "seven."][: len(said)]
    assert len(said) < 5


async def test_a_session_shows_the_words_that_are_spoken(tiny_custom_voice: Checkpoint) -> None:
    """``use_tts_aligned_transcript``: what the user reads is what the plugin tells, and the same text."""
    answer = "Good morning, sir. How are you?"
    with engine_on(fakes(frames=40), tiny_custom_voice) as engine:
        async with conversation(TTS(engine=engine), {"Hello.": [answer[:9], answer[9:]]}, aligned=True) as talk:
            await talk.caller.says("Hello.")
            await talk.hears(1)
            await until(lambda: talk.said)
            assert talk.said == [answer]
            assert not talk.errors
