"""Words of a lexicon and numbers in an answer: what is spoken, what is reported, and what the conversation keeps."""

import pytest
from pipecat.frames.frames import ErrorFrame, TTSTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.tts_service import TextAggregationMode

from megatalker import Checkpoint
from megatalker.errors import SettingsError
from megatalker_pipecat import MegatalkerTTSService, MegatalkerTTSSettings
from pipecat_stage import perform, turn
from session_stage import engine_on, fakes
from spoken_text import SpokenText

pytestmark = pytest.mark.asyncio
FRAMES = 60
WRITTEN = "Sean ran 5 km on May 3. He paid $2."
SPOKEN = "Shawn ran five kilometers on May third. He paid two dollars."


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> SpokenText:
    return SpokenText(monkeypatch)


@pytest.mark.parametrize("mode", list(TextAggregationMode))
@pytest.mark.parametrize("size", [1, 3, 1_000])
async def test_an_answer_is_rewritten_for_the_ear_alone(
    tiny_custom_voice: Checkpoint, spoken: SpokenText, mode: TextAggregationMode, size: int
) -> None:
    context, words = LLMContext(), list[str]()
    settings = MegatalkerTTSSettings(normalize="on", lexicon={"Sean": "Shawn"}, language="english")
    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode, settings=settings)
        answer = turn(*(WRITTEN[at : at + size] for at in range(0, len(WRITTEN), size)))
        heard = await perform(
            service,
            answer,
            watch=lambda frame: words.append(frame.text) if isinstance(frame, TTSTextFrame) else None,
            after=[LLMAssistantAggregator(context)],
        )
    assert " ".join(spoken.take()) == SPOKEN
    assert not [frame for frame in heard.up if isinstance(frame, ErrorFrame)]
    (message,) = context.get_messages()
    assert isinstance(message, dict)
    assert message["content"] == WRITTEN, "the conversation keeps what was written"


async def test_impossible_settings_are_refused(tiny_custom_voice: Checkpoint) -> None:
    with pytest.raises(SettingsError, match="normalize is 'yes', expected 'off', 'on' or None"):
        MegatalkerTTSSettings(normalize="yes").check()  # type: ignore[arg-type]
