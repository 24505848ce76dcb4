"""Text that was not spoken because of a failure does not enter the conversation as spoken."""

import pytest
from pipecat.frames.frames import ErrorFrame, LLMFullResponseEndFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.services.tts_service import TextAggregationMode

from fake_backend import ends_after
from megatalker import Checkpoint
from megatalker_pipecat import EnginePool, MegatalkerTTSService
from pipecat_stage import ServiceOutput, perform, service_with, turn
from serving import ENDLESS, endless, serving
from session_stage import FRAMES, DecodeFault, engine_on, fakes

pytestmark = pytest.mark.asyncio

FIRST, SECOND, THIRD = "One two three. ", "Four five six. ", "Seven eight nine."
RAW = MegatalkerTTSService.Settings(clean_text=False)
"""Refuses control tokens, which are cleaned by default."""
CALLS = FRAMES + 1
"""Decode calls of a sentence: its frames, and the one that finds its end."""


Service = service_with(EnginePool())


def assert_only_the_first_sentence(heard: ServiceOutput) -> None:
    words = heard.words()
    assert words[:3] == FIRST.split()
    assert words[3:] == SECOND.split()[: len(words) - 3], "no more than the beginning of the second"
    assert len(words) < 6
    assert isinstance(heard.down[-1], LLMFullResponseEndFrame), "the turn ended as usual"


@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_after_the_engine_died(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    first = CALLS + 1 if mode is TextAggregationMode.SENTENCE else 1
    with engine_on(fakes(on_decode=DecodeFault(first)), tiny_custom_voice, max_chunk_frames=1) as engine:
        heard = await perform(Service(engine=engine, text_aggregation_mode=mode), turn(FIRST, SECOND, THIRD))
    if mode is TextAggregationMode.SENTENCE:
        assert_only_the_first_sentence(heard)
    assert "nine." not in " ".join(heard.words())


async def test_a_service_that_is_unusable_has_spoken_nothing(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(on_decode=DecodeFault(0)), tiny_custom_voice) as engine:
        heard = await perform(Service(engine=engine), [TTSSpeakFrame("One."), TTSSpeakFrame("Two.")])
    assert heard.words() == []


@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_when_no_speech_could_begin(tiny_custom_voice: Checkpoint, mode: TextAggregationMode) -> None:
    full = {**ENDLESS, "max_streams": 1, "max_waiting": 0}
    with engine_on(endless(), tiny_custom_voice, **full) as engine, engine.speak("On and on."):
        service = Service(engine=engine, text_aggregation_mode=mode)
        heard = await perform(service, turn(FIRST, SECOND, THIRD))
    assert service.is_usable
    assert heard.words() == []


async def test_after_the_engine_of_a_server_died(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes(on_decode=DecodeFault(CALLS + 1)), max_chunk_frames=1) as served:
        assert_only_the_first_sentence(await perform(Service(server_url=served.url), turn(FIRST, SECOND, THIRD)))


async def test_after_a_server_was_stopped(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes(frames=None)) as served:

        def stop(frame: object) -> None:
            if isinstance(frame, TTSAudioRawFrame):
                served.server.should_exit = True
                served.engine.close()

        heard = await perform(Service(server_url=served.url), turn(FIRST, SECOND, THIRD), watch=stop)
    spoken = heard.words()
    assert spoken == (FIRST + SECOND + THIRD).split()[: len(spoken)]
    assert "Four" not in spoken


async def test_a_sentence_that_fails_alone(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        heard = await perform(Service(engine=engine, settings=RAW), turn(FIRST, "And <|im_end|> then. ", THIRD))
    assert heard.words() == [*FIRST.split(), *THIRD.split()]


LONG = ["The first one is here. ", "A second one follows. ", "Then the third is said."]


@pytest.mark.usefixtures("short_speech_is_repeated")
@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_words_that_a_model_leaves_out_are_not_reported_as_spoken(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    """The last sentence is a segment of its own in both modes; its speech ends too early twice."""
    sentences = 2 if mode is TextAggregationMode.SENTENCE else 1
    plug_in = ends_after(*[25] * sentences, 4)
    with engine_on(plug_in, tiny_custom_voice, max_segment_chars=24, max_chunk_frames=1) as engine:
        heard = await perform(Service(engine=engine, text_aggregation_mode=mode), turn(*LONG))
    said = "".join(LONG).split()
    # where the engine dropped a word that it had no audio for, Pipecat reports it in one frame with the word after it
    words = " ".join(heard.words()).split()
    assert words == said[: len(words)]
    # token by token, each try goes on with the words that the one before had not read
    assert len(said) - 5 <= len(words) < len(said) + (mode is TextAggregationMode.TOKEN)
    (error,) = [frame for frame in heard.up if isinstance(frame, ErrorFrame)]
    assert "leaves out about" in error.error
    assert not error.fatal
    assert isinstance(heard.down[-1], LLMFullResponseEndFrame), "the turn ended as usual"


@pytest.mark.usefixtures("short_speech_is_repeated")
async def test_a_sentence_of_which_some_is_left_out_does_not_end_the_turn(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(ends_after(25, 3, 3, 25), tiny_custom_voice) as engine:
        heard = await perform(Service(engine=engine), turn(*LONG))
    words = heard.words()
    assert words[:5] == LONG[0].split()
    assert words[-5:] == LONG[2].split()
    assert "follows." not in words


async def test_a_sentence_that_was_said_again_is_spoken(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(ends_after(3, 25), tiny_custom_voice) as engine:
        heard = await perform(Service(engine=engine), turn(*LONG))
    assert heard.words() == "".join(LONG).split()
    assert not heard.up
