"""The user speaks: what is being said ends within a frame, what must be said goes on, nothing waits for the engine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    AggregatedTextProgressFrame,
    CancelFrame,
    CancelWorkerFrame,
    Frame,
    InterruptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.tts_service import TextAggregationMode

from megatalker import Checkpoint, Engine, Settings
from megatalker.engine import SpeechOptions, SpeechStream
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.audio import Sound
from megatalker_pipecat.context_speech import ContextSpeech
from pipecat_stage import HANG_S, Brake, Entrance, ServiceOutput, named, pcm16, perform, service_with, turn
from session_stage import FRAMES, engine_on, fakes, pool_of

pytestmark = pytest.mark.asyncio
MODES = list(TextAggregationMode)
SEEDED = MegatalkerTTSService.Settings(seed=3)


def after_interruption(heard: ServiceOutput) -> list[Frame]:
    kinds = [type(frame) for frame in heard.down]
    return list(heard.down[kinds.index(InterruptionFrame) + 1 :])


def at_first_audio(*steps: Callable[[Entrance], Awaitable[None]]) -> Callable[[Entrance, Frame], Awaitable[None]]:
    """From the first audio on, do the steps concurrently with the pipeline's work, then end the pipeline."""
    tasks: list[asyncio.Task[None]] = []

    async def act(entrance: Entrance) -> None:
        for step in steps:
            await step(entrance)
        await entrance.end()

    async def hear(entrance: Entrance, frame: Frame) -> None:
        if isinstance(frame, TTSAudioRawFrame) and not tasks:
            tasks.append(asyncio.create_task(act(entrance)))

    return hear


def send(*frames: Frame) -> Callable[[Entrance], Awaitable[None]]:
    async def step(entrance: Entrance) -> None:
        await entrance.send(*frames)

    return step


class Noting:
    """An engine that notes its streams, and does something before it makes one."""

    def __init__(self, engine: Engine, before: Callable[[str | None], None] = lambda text: None) -> None:
        self.streams: list[SpeechStream] = []
        self._engine, self._before = engine, before

    def speak(self, text: str | None, options: SpeechOptions | None = None, **changes: Any) -> SpeechStream:
        self._before(text)
        self.streams.append(self._engine.speak(text, options, **changes))
        return self.streams[-1]

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        self._before(None)
        self._engine.check(options, **changes)

    def close(self) -> None:
        """The test closes the engine."""


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("mode", MODES)
async def test_interruption_is_downstream_while_the_engine_is_in_the_middle_of_a_step(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    brake = Brake(after=4)
    plug_in = fakes(frames=None, on_decode=brake)
    with engine_on(plug_in, tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        passed = asyncio.Event()

        async def wait_for_the_step(entrance: Entrance) -> None:
            await brake.wait_until_reached()

        async def wait_for_the_interruption(entrance: Entrance) -> None:
            await passed.wait()  # the step has not ended: nobody let go of the brake
            assert not brake.let_go.is_set()
            brake.let_go.set()
            await until(lambda: engine.metrics().active == 0)

        script = at_first_audio(wait_for_the_step, send(InterruptionFrame()), wait_for_the_interruption)

        async def hear(entrance: Entrance, frame: Frame) -> None:
            if isinstance(frame, InterruptionFrame):
                passed.set()
            await script(entrance, frame)

        heard = await perform(service, turn("One two three four five six."), hear=hear)
        assert not [frame for frame in after_interruption(heard) if isinstance(frame, TTSAudioRawFrame)]
        assert not heard.of(TTSStoppedFrame), "the transport is told by the interruption, nothing else"
        talker = plug_in.loaded["fake"]
        assert len(talker.calls) <= 4 + 1, "the step that ran, and no other"
        assert not talker.streams, "its rows are free"


@pytest.mark.parametrize("mode", MODES)
async def test_the_next_turn_is_spoken_whole(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    with engine_on(fakes(), tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(engine=engine, settings=SEEDED, text_aggregation_mode=mode)
        script = at_first_audio(send(InterruptionFrame(), TTSSpeakFrame("Yes?")))
        heard = await perform(service, turn("One two three four five six."), hear=script)
        later = ServiceOutput(after_interruption(heard), [])
        assert later.named()[0] in ("AggregatedTextFrame(Yes?)", "TTSStartedFrame")
        assert later.named()[-2:] == ["LLMAssistantPushAggregationFrame", "TTSStoppedFrame"]
        alone = pcm16(engine, "Yes?", seed=3) if mode is TextAggregationMode.SENTENCE else None
        assert alone is None or later.audio() == alone
        assert len(later.audio()) == 2 * FRAMES * 1920
        assert len({frame.context_id for frame in later.of(TTSAudioRawFrame)}) == 1


async def test_a_cancelled_utterance_says_nothing_more(tiny_custom_voice: Checkpoint) -> None:
    """Neither remaining words nor the samples in filters are heard."""
    text = "One two three four five six."
    with engine_on(fakes(frames=None), tiny_custom_voice, max_chunk_frames=1) as engine:
        speech = engine.speak(text, word_times=True)
        utterance = ContextSpeech(speech, Sound(16_000, trim=False))
        passages = []
        async for passage in utterance:
            passages.append(passage)
            utterance.cancel()
    assert len(passages) == 1
    assert not utterance.complete
    assert speech.take_words() == []


async def test_only_words_that_were_spoken_are_reported(tiny_custom_voice: Checkpoint) -> None:
    brake = Brake(after=6)
    with engine_on(fakes(frames=None, on_decode=brake), tiny_custom_voice, max_chunk_frames=1) as engine:

        async def let_go(entrance: Entrance) -> None:
            brake.let_go.set()

        async def wait(entrance: Entrance) -> None:
            await brake.wait_until_reached()
            await asyncio.sleep(0.05)  # what was made before is on its way

        script = at_first_audio(wait, send(InterruptionFrame()), let_go)
        heard = await perform(MegatalkerTTSService(engine=engine), turn("One two three four five six."), hear=script)
        assert heard.words() == ["One", "two"], "half a second of audio holds no more"


@pytest.mark.parametrize("mode", MODES)
async def test_speech_that_must_be_said_goes_on(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    brake = Brake(after=4)
    with engine_on(fakes(on_decode=brake), tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(engine=engine, settings=SEEDED, text_aggregation_mode=mode)
        warning = TTSSpeakFrame("This call is recorded.")
        warning.interruptible = False

        async def wait(entrance: Entrance) -> None:
            await brake.wait_until_reached()

        async def let_go(entrance: Entrance) -> None:
            brake.let_go.set()

        script = at_first_audio(wait, send(InterruptionFrame()), let_go)
        heard = await perform(service, [warning], hear=script)
        silent = (AggregatedTextFrame, AggregatedTextProgressFrame)
        assert named([frame for frame in heard.down if not isinstance(frame, silent)]) == [
            "TTSStartedFrame",
            "TTSAudioRawFrame",
            "InterruptionFrame",
            "TTSAudioRawFrame",
            "LLMAssistantPushAggregationFrame",
            "TTSStoppedFrame",
        ]
        assert heard.words() == ["This", "call", "is", "recorded."]
        assert len(heard.audio()) == 2 * FRAMES * 1920
        assert engine.metrics().cancelled == 0


@pytest.mark.parametrize("mode", MODES)
async def test_speech_that_waits_for_another_to_end_is_dropped(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    brake = Brake(after=4)
    with engine_on(fakes(on_decode=brake), tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)

        async def wait(entrance: Entrance) -> None:
            await brake.wait_until_reached()

        async def let_go(entrance: Entrance) -> None:
            brake.let_go.set()
            await until(lambda: engine.metrics().active == 0)

        script = at_first_audio(wait, send(InterruptionFrame()), let_go)
        heard = await perform(service, [TTSSpeakFrame("One."), TTSSpeakFrame("Two.")], hear=script)
        assert not ServiceOutput(after_interruption(heard), []).named()


@pytest.mark.parametrize("interruptible", [True, False])
async def test_a_request_on_its_way_to_the_engine_is_withdrawn(
    tiny_custom_voice: Checkpoint, interruptible: bool
) -> None:
    """This holds also when Pipecat lets the processing of the frame that began it run on."""
    with engine_on(fakes(frames=None), tiny_custom_voice) as engine:
        submitted, let_go = asyncio.Event(), Brake(after=0)
        loop = asyncio.get_running_loop()

        def hold(text: str | None) -> None:
            if text is not None:
                loop.call_soon_threadsafe(submitted.set)
                let_go(0)

        slow = Noting(engine, hold)
        streams = slow.streams

        async def interrupt() -> None:
            await submitted.wait()
            await entrances[0].send(InterruptionFrame())

        entrances: list[Entrance] = []
        service = MegatalkerTTSService(engine=slow)

        async def hear(entrance: Entrance, frame: Frame) -> None:
            if not entrances:
                entrances.append(entrance)
                tasks.append(asyncio.create_task(interrupt()))
            if isinstance(frame, InterruptionFrame):
                let_go.let_go.set()
                await until(lambda: len(streams) == 1 and streams[0].finish_reason == "cancelled")
                await entrance.end()

        tasks: list[asyncio.Task[None]] = []
        start, text, end = turn("One two three. Four")
        text.interruptible = interruptible
        heard = await perform(service, [start, text, end], hear=hear)
        assert not heard.audio()


async def test_interruption_passes_while_another_engine_is_loading(tiny_custom_voice: Checkpoint) -> None:
    loading = Brake(after=0)
    plug_in = fakes()
    plug_in.talkers["other"] = type(plug_in.talkers["fake"])(on_load=lambda: loading(0))

    passed = asyncio.Event()

    async def wait_until_loading(entrance: Entrance) -> None:
        await loading.wait_until_reached()

    async def wait_until_passed(entrance: Entrance) -> None:
        await passed.wait()
        loading.let_go.set()

    change = TTSUpdateSettingsFrame(delta=MegatalkerTTSService.Settings(backend="other"))
    script = at_first_audio(
        send(change), wait_until_loading, send(InterruptionFrame()), wait_until_passed, send(TTSSpeakFrame("Yes?"))
    )

    async def hear(entrance: Entrance, frame: Frame) -> None:
        if isinstance(frame, InterruptionFrame):
            passed.set()
        await script(entrance, frame)

    service = service_with(pool_of(plug_in, tiny_custom_voice))(engine_settings=Settings(backend="fake"))
    heard = await perform(service, [TTSSpeakFrame("One.")], hear=hear)
    assert ServiceOutput(after_interruption(heard), []).words() == ["Yes?"]
    assert plug_in.loaded["other"].prefills, "the engine that was asked for spoke"


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_pipeline_frees_the_engine(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    reasons: list[str | None] = []
    with engine_on(fakes(frames=None), tiny_custom_voice) as engine:
        noting = Noting(engine)

        async def cancel(entrance: Entrance) -> None:
            await entrance.push_frame(CancelWorkerFrame(), FrameDirection.UPSTREAM)

        def watch(frame: Frame) -> None:
            if isinstance(frame, CancelFrame):
                reasons.append(noting.streams[-1].finish_reason)

        service = MegatalkerTTSService(engine=noting, text_aggregation_mode=mode)
        await perform(service, turn("One two three."), hear=at_first_audio(cancel), watch=watch)
        await until(lambda: engine.metrics().active == 0)
        assert reasons == ["cancelled"], "at once, not when the service is cleaned up"


async def test_interrupted_speech_does_not_delay_the_next_turn(tiny_custom_voice: Checkpoint) -> None:
    """With ``max_ahead_s``, speech waits for playback; after an interruption there is nothing to wait for."""
    ahead_s = HANG_S
    frames = int(ahead_s / 0.08)
    heard_frames = 0
    with engine_on(fakes(frames=frames), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, settings=MegatalkerTTSService.Settings(max_ahead_s=ahead_s))

        async def hear(entrance: Entrance, frame: Frame) -> None:
            nonlocal heard_frames
            if isinstance(frame, TTSAudioRawFrame):
                heard_frames += frame.num_frames // 1920
                if heard_frames == frames:
                    await entrance.send(InterruptionFrame(), TTSSpeakFrame("Yes?"))
                    await entrance.end()

        async with asyncio.timeout(ahead_s / 2):
            heard = await perform(service, [TTSSpeakFrame("One."), TTSSpeakFrame("Two.")], hear=hear)
        assert ServiceOutput(after_interruption(heard), []).words() == ["Yes?"]


async def test_the_end_of_the_pipeline_ends_a_turn_whose_text_never_ends(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=TextAggregationMode.TOKEN)
        start, text, _ = turn("One two three.")
        heard = await perform(service, [start, text])
        assert len(heard.audio()) == 2 * FRAMES * 1920
