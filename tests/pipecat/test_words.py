"""Words as Pipecat wants them."""

import pytest
from pipecat.frames.frames import AggregatedTextProgressFrame, TTSSpeakFrame, TTSTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.tts_service import TextAggregationMode

from megatalker import Checkpoint
from megatalker_pipecat import MegatalkerTTSService
from pipecat_stage import perform, turn
from session_stage import engine_on, fakes


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(TextAggregationMode))
@pytest.mark.parametrize(
    "text",
    [
        "Good morning. How are you - fine, I hope? It's 3 o'clock \N{THUMBS UP SIGN}",
        "... Well. *** Yes!",
        "你好，世界。 我喜欢茶！",  # noqa: RUF001 - Chinese punctuation is meant
    ],
)
async def test_the_conversation_keeps_the_text_as_it_was_written(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode, text: str
) -> None:
    """The assistant aggregator restores from the words the text that the language model wrote."""
    context = LLMContext()
    with engine_on(fakes(frames=40), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        words = turn(*(text[at : at + 5] for at in range(0, len(text), 5)))
        heard = await perform(service, words, after=[LLMAssistantAggregator(context)])
        assert not heard.up or all(not hasattr(frame, "error") for frame in heard.up)
    (message,) = context.get_messages()
    assert isinstance(message, dict)
    assert "".join(str(message["content"]).split()) == "".join(text.split())
    if text.isascii():
        assert message["content"] == text


@pytest.mark.asyncio
async def test_progress_reaches_the_end_of_the_text(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        heard = await perform(MegatalkerTTSService(engine=engine), [TTSSpeakFrame("Good morning to you.")])
        progress = heard.of(AggregatedTextProgressFrame)
        assert len(progress) == len(heard.of(TTSTextFrame)) == 4
