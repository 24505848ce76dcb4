"""Frames that the service pushes for a text, and their order."""

from collections.abc import Iterator

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import (
    ProcessingMetricsData,
    TextAggregationMetricsData,
    TTFAMetricsData,
    TTFBMetricsData,
    TTSUsageMetricsData,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.tts_service import TextAggregationMode

from megatalker import FRAME_SAMPLES, Checkpoint, Engine
from megatalker_pipecat import MegatalkerTTSService
from pipecat_stage import HANG_S, fed_pcm16, pcm16, perform, turn, when_first_heard
from session_stage import FRAMES, engine_on, fakes

pytestmark = pytest.mark.asyncio
SEEDED = MegatalkerTTSService.Settings(seed=3)
TOKEN = TextAggregationMode.TOKEN


@pytest.fixture
def engine(tiny_custom_voice: Checkpoint) -> Iterator[Engine]:
    with engine_on(fakes(), tiny_custom_voice, max_chunk_frames=1) as engine:
        yield engine


async def test_speak_frame(engine: Engine) -> None:
    heard = await perform(MegatalkerTTSService(engine=engine, settings=SEEDED), [TTSSpeakFrame("Good morning.")])
    assert heard.named() == [
        "AggregatedTextFrame(Good morning.)",
        "TTSStartedFrame",
        "TTSAudioRawFrame",
        "TTSTextFrame(Good)",
        "TTSAudioRawFrame",
        "TTSTextFrame(morning.)",
        "TTSAudioRawFrame",
        "LLMAssistantPushAggregationFrame",
        "TTSStoppedFrame",
    ]
    assert heard.audio() == pcm16(engine, "Good morning.", seed=3)


async def test_turn_of_two_sentences(engine: Engine) -> None:
    service = MegatalkerTTSService(engine=engine, settings=SEEDED)
    heard = await perform(service, turn("Good mor", "ning. How", " are you?"))
    assert heard.named() == [
        "LLMFullResponseStartFrame",
        "AggregatedTextFrame(Good morning.)",
        "TTSStartedFrame",
        "TTSAudioRawFrame",
        "TTSTextFrame(Good)",
        "TTSAudioRawFrame",
        "TTSTextFrame(morning.)",
        "TTSAudioRawFrame",
        "AggregatedTextFrame(How are you?)",
        "TTSAudioRawFrame",
        "TTSTextFrame(How)",
        "TTSAudioRawFrame",
        "TTSTextFrame(are)",
        "TTSAudioRawFrame",
        "TTSTextFrame(you?)",
        "TTSAudioRawFrame",
        "TTSStoppedFrame",
        "LLMFullResponseEndFrame",
    ]
    assert heard.audio() == pcm16(engine, "Good morning.", seed=3) + pcm16(engine, "How are you?", seed=3)
    assert len({frame.context_id for frame in heard.of(TTSAudioRawFrame)}) == 1


async def test_word_times_count_from_the_start_of_the_turn(engine: Engine) -> None:
    service = MegatalkerTTSService(engine=engine)
    heard = await perform(service, turn("Good morning. ", "How are you?"))
    times = [frame.pts for frame in heard.of(TTSTextFrame)]
    assert times == sorted(times)
    assert times[2] - times[0] == FRAMES * 80_000_000  # the second sentence begins where the first ends


async def test_turn_in_token_mode(engine: Engine) -> None:
    service = MegatalkerTTSService(engine=engine, settings=SEEDED, text_aggregation_mode=TOKEN)
    start, first, *rest = turn("Good morning. ", "How", " are you?")
    heard = await perform(service, [start, first], hear=when_first_heard(*rest))
    spoken = [name for name in heard.named() if "AggregatedTextFrame" not in name]
    assert spoken == [
        "LLMFullResponseStartFrame",
        "TTSStartedFrame",
        "TTSAudioRawFrame",
        "TTSTextFrame(Good)",
        "TTSAudioRawFrame",
        "TTSTextFrame(morning.)",
        "TTSAudioRawFrame",
        "TTSTextFrame(How)",
        "TTSTextFrame(are)",
        "TTSTextFrame(you?)",
        "TTSStoppedFrame",
        "LLMFullResponseEndFrame",
    ]
    assert [frame.text for frame in heard.of(AggregatedTextFrame) if not isinstance(frame, TTSTextFrame)] == [
        "Good morning.",
        " How are you?",
    ]


async def test_token_mode_feeds_the_model_one_stream(tiny_custom_voice: Checkpoint) -> None:
    plug_in = fakes()
    with engine_on(plug_in, tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, settings=SEEDED, text_aggregation_mode=TOKEN)
        start, first, *rest = turn("Good morning. ", "How", " are you?")
        heard = await perform(service, [start, first], hear=when_first_heard(*rest))
        assert len(plug_in.loaded["fake"].prefills) == 1
        assert heard.audio() == fed_pcm16(engine, "Good morning. ", "How are you?", seed=3)


async def test_two_contexts_in_token_mode_follow_each_other(engine: Engine) -> None:
    service = MegatalkerTTSService(engine=engine, text_aggregation_mode=TOKEN)
    heard = await perform(service, [TTSSpeakFrame("One."), TTSSpeakFrame("Two.")])
    marks = [name for name in heard.named() if name.startswith("TTSS")]
    assert marks == ["TTSStartedFrame", "TTSStoppedFrame"] * 2
    assert len(heard.audio()) == 2 * 2 * FRAMES * FRAME_SAMPLES


@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_nothing_to_say_is_a_moment_of_silence(engine: Engine, mode: TextAggregationMode) -> None:
    service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
    heard = await perform(service, [TTSSpeakFrame("\N{THUMBS UP SIGN}") for _ in range(4)])
    assert (
        heard.named()
        == 4
        * [
            "AggregatedTextFrame(\N{THUMBS UP SIGN})",
            "TTSStartedFrame",
            "TTSAudioRawFrame",
            "TTSTextFrame(\N{THUMBS UP SIGN})",
            "LLMAssistantPushAggregationFrame",
            "TTSStoppedFrame",
        ]
        or mode is TOKEN
    )
    assert heard.audio() == bytes(4 * 2 * 480)
    assert heard.words() == ["\N{THUMBS UP SIGN}"] * 4
    assert not heard.up, "no error: there was nothing to say"


async def test_nothing_to_say_between_sentences_adds_no_audio(engine: Engine) -> None:
    heard = await perform(MegatalkerTTSService(engine=engine), turn("Yes. ", "... ", "\n---\n", "No."))
    assert len(heard.audio()) == 2 * 2 * FRAMES * FRAME_SAMPLES
    assert heard.named()[-2:] == ["TTSStoppedFrame", "LLMFullResponseEndFrame"]


async def test_a_turn_that_ends_with_nothing_to_say_ends_at_once(engine: Engine) -> None:
    service = MegatalkerTTSService(engine=engine, stop_frame_timeout_s=HANG_S)
    heard = await perform(service, turn("Yes. ", "\N{THUMBS UP SIGN}"))
    assert heard.words() == ["Yes.", "\N{THUMBS UP SIGN}"]
    assert [name for name in heard.named() if name.startswith("TTSS")] == ["TTSStartedFrame", "TTSStoppedFrame"]


async def test_settings_change_between_two_sentences(engine: Engine) -> None:
    start, *sentences, end = turn("One two. ", "Three four. ", "Five.")
    change = TTSUpdateSettingsFrame(delta=MegatalkerTTSService.Settings(voice="vivian", seed=9))
    service = MegatalkerTTSService(engine=engine, settings=MegatalkerTTSService.Settings(voice="ryan", seed=3))
    heard = await perform(service, [start, *sentences, change, end])
    assert heard.audio() == b"".join(
        [
            pcm16(engine, "One two.", voice="ryan", seed=3),
            pcm16(engine, "Three four.", voice="ryan", seed=3),
            pcm16(engine, "Five.", voice="vivian", seed=9),
        ]
    )
    assert [name for name in heard.named() if name.startswith("TTSS")] == ["TTSStartedFrame", "TTSStoppedFrame"]


async def test_a_turn_in_token_mode_keeps_the_settings_it_began_with(tiny_custom_voice: Checkpoint) -> None:
    start, first, second, end = turn("One ", "two.")
    change = TTSUpdateSettingsFrame(delta=MegatalkerTTSService.Settings(seed=9))
    plug_in = fakes()
    with engine_on(plug_in, tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, settings=SEEDED, text_aggregation_mode=TOKEN)
        heard = await perform(service, [start, first], hear=when_first_heard(change, second, end, *turn("Three.")))
        first_turn, _ = dict.fromkeys(frame.context_id for frame in heard.of(TTSAudioRawFrame))
        assert [request.sampling.seed for request in plug_in.loaded["fake"].prefills] == [3, 9]
        assert heard.audio(first_turn) == fed_pcm16(engine, "One ", "two.", seed=3)


@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_metrics(engine: Engine, mode: TextAggregationMode) -> None:
    service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
    params = PipelineParams(enable_metrics=True, enable_usage_metrics=True, send_initial_empty_metrics=False)
    heard = await perform(service, turn("Good morning. ", "How are you?"), params=params)
    found = [data for frame in heard.of(MetricsFrame) for data in frame.data]
    kinds = [type(data) for data in found]
    expected = {TTFBMetricsData: 1, TTFAMetricsData: 1, TTSUsageMetricsData: 1}
    if mode is TextAggregationMode.SENTENCE:
        expected |= {TTSUsageMetricsData: 2, TextAggregationMetricsData: 1, ProcessingMetricsData: 2}
    assert {kind: kinds.count(kind) for kind in kinds} == expected
    assert {data.model for data in found} == {"demo"}
    assert sum(data.value for data in found if isinstance(data, TTSUsageMetricsData)) == len(
        "Good morning.How are you?"
    ) + (mode is TOKEN)
