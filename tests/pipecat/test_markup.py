"""Each element of markup in an answer for Pipecat, and what the conversation keeps of it."""

import pytest
from pipecat.frames.frames import ErrorFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.tts_service import TextAggregationMode

from markup_elements import ELEMENTS, FRAMES, elements
from megatalker import Checkpoint
from megatalker.errors import SettingsError
from megatalker.serving.audio import from_pcm16
from megatalker_pipecat import MegatalkerTTSService, MegatalkerTTSSettings
from pipecat_stage import perform, turn
from session_stage import engine_on, fakes
from spoken_text import SpokenText

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("name", ELEMENTS)
async def test_each_element_is_spoken(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spoken, speaker, context = SpokenText(monkeypatch), list(tiny_custom_voice.config.speakers)[1], LLMContext()
    element = elements(speaker)[name]
    settings = MegatalkerTTSSettings(markup=element.markup, cast={"Anna": speaker}, language="english")
    with engine_on(fakes(FRAMES), tiny_custom_voice, short_speech="believe") as engine:
        service = MegatalkerTTSService(
            engine=engine, text_aggregation_mode=TextAggregationMode.TOKEN, settings=settings
        )
        heard = await perform(service, turn(*element.text), after=[LLMAssistantAggregator(context)])
    assert not [frame for frame in heard.up if isinstance(frame, ErrorFrame)]
    assert tuple(spoken.take()) == element.segments
    element.require_pause(from_pcm16(heard.audio()))
    (message,) = context.get_messages()
    assert isinstance(message, dict)
    kept = str(message["content"])
    assert "".join(kept.split()) == "".join(element.text.split()), "the conversation keeps what was written"


async def test_a_fault_is_told_once_and_the_next_turn_speaks(tiny_custom_voice: Checkpoint) -> None:
    settings = MegatalkerTTSSettings(markup="ssml", language="english")
    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(
            engine=engine, text_aggregation_mode=TextAggregationMode.TOKEN, settings=settings
        )
        heard = await perform(service, [*turn("It is ", "<b>", "bold", "</b>."), *turn("And on.")])
    errors = [frame.error for frame in heard.up if isinstance(frame, ErrorFrame) and "cannot speak" in frame.error]
    assert len(errors) == 1
    assert "line 1, column 7: unknown element <b>" in errors[0]
    assert heard.audio()


async def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="markup is 'html', expected 'none', 'tags', 'ssml' or None"):
        MegatalkerTTSSettings(markup="html").check()  # type: ignore[arg-type]
