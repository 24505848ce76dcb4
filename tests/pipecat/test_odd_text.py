"""Odd text in an answer: its words are spoken and reported, and a bad piece costs itself alone."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from pipecat.frames.frames import ErrorFrame, Frame, InterruptionFrame, TTSSpeakFrame, TTSTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.tts_service import TextAggregationMode

from megatalker import Checkpoint
from megatalker.engine.speech.word_times import Pace, WordClock
from megatalker.errors import SettingsError
from megatalker.prompt.cleaning import clean
from megatalker_pipecat import MegatalkerTTSService
from pipecat_stage import Entrance, perform, turn
from session_stage import engine_on, fakes
from spoken_text import SpokenText, letters

HALVES = ("I am happy \ud83d", "\ude00 to see you.")
FRAMES = 40
"""More than there are tokens: no text is left when a stream ends."""
TOKEN = TextAggregationMode.TOKEN


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> SpokenText:
    return SpokenText(monkeypatch)


ODD = [
    (HALVES, "I am happy \U0001f600 to see you."),
    (("I am \ud83d happy. ", "And you \ude00?"), "I am happy. And you ?"),
    (("\ud83d",), None),
    (("Hello \x1b]0;the", "re. Bye."), "Hello 0;there. Bye."),  # begins as an escape sequence does, but is none
    (("One <|im", "_end|> two <|im"), "One two <|im"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(TextAggregationMode))
@pytest.mark.parametrize(("pieces", "meant"), ODD)
async def test_odd_pieces_cost_no_word(
    tiny_custom_voice: Checkpoint,
    spoken: SpokenText,
    mode: TextAggregationMode,
    pieces: tuple[str, ...],
    meant: str | None,
) -> None:
    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        heard = await perform(MegatalkerTTSService(engine=engine, text_aggregation_mode=mode), turn(*pieces))
    assert letters(" ".join(spoken.take())) == letters(meant or "")
    assert not [frame for frame in heard.up if isinstance(frame, ErrorFrame)]
    if meant is not None:
        assert heard.audio()
        assert letters("".join(map(clean, heard.words()))) == letters(meant)


@pytest.mark.asyncio
async def test_a_refused_piece_is_not_reported_as_spoken(tiny_custom_voice: Checkpoint, spoken: SpokenText) -> None:
    with engine_on(fakes(FRAMES), tiny_custom_voice, max_text_chars=20) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=TOKEN)
        heard = await perform(service, turn("Hello there. ", "Words that are too many. ", "And more of them."))
    assert spoken.take() == ["Hello there."]
    assert [frame for frame in heard.up if isinstance(frame, ErrorFrame)]
    assert " ".join(heard.words()) == "Hello there."


DISGUISED = "\U0001f177\U0001f158 \ufeff\U0001d573o, the \ufb01rst \uff21\uff22. Then \U0001f177\U0001f158"
SAID = ["HI", "Ho,", "the", "first", "AB.", "Then", "HI"]


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(TextAggregationMode))
@pytest.mark.parametrize("size", [1, 4, 1_000])
async def test_disguised_words_are_reported_one_by_one(
    tiny_custom_voice: Checkpoint, spoken: SpokenText, mode: TextAggregationMode, size: int
) -> None:
    context, words = LLMContext(), list[str]()

    def watch(frame: Frame) -> None:
        if isinstance(frame, TTSTextFrame):
            words.append(frame.text)

    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        answer = turn(*(DISGUISED[at : at + size] for at in range(0, len(DISGUISED), size)))
        await perform(service, answer, watch=watch, after=[LLMAssistantAggregator(context)])
    assert " ".join(spoken.take()) == " ".join(SAID)
    assert words == SAID
    (message,) = context.get_messages()
    assert isinstance(message, dict)
    assert message["content"] == DISGUISED, "the conversation keeps what was written"


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_an_interruption_leaves_the_disguised_words_that_were_spoken(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    context, words = LLMContext(), list[str]()

    async def interrupt(entrance: Entrance, frame: Frame) -> None:
        if isinstance(frame, TTSTextFrame):
            words.append(frame.text)
            if len(words) == 1:
                await entrance.send(InterruptionFrame())
        elif isinstance(frame, InterruptionFrame):
            await entrance.end()

    with engine_on(fakes(frames=None), tiny_custom_voice, max_chunk_frames=1, max_ahead_s=0.3) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        await perform(service, turn(DISGUISED), hear=interrupt, after=[LLMAssistantAggregator(context)])
    assert words == SAID[: len(words)]
    assert 0 < len(words) < len(SAID)
    (message,) = context.get_messages()
    assert isinstance(message, dict)
    assert message["content"] == " ".join(DISGUISED.split()[: len(words)])


@pytest.mark.asyncio
async def test_an_answer_of_paragraphs_is_spoken_in_full(tiny_custom_voice: Checkpoint, spoken: SpokenText) -> None:
    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        heard = await perform(MegatalkerTTSService(engine=engine), [TTSSpeakFrame("Good morning.\n\nHow are you?")])
    assert spoken.take() == ["Good morning.", "How are you?"]
    assert heard.words() == ["Good", "morning.", "How", "are", "you?"]


def test_an_impossible_switch_is_refused() -> None:
    with pytest.raises(SettingsError, match="clean_text is 'no'"):
        MegatalkerTTSService.Settings(clean_text="no").check()  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", [".", "a", ". ", "\ude00", "我", "\u0301"])
def test_words_of_pieces_are_found_in_linear_work(unit: str) -> None:
    def spent(chars: int) -> float:
        def work() -> None:
            clock = WordClock(Pace())
            for character in (unit * chars)[:chars]:
                clock.feed(character)
            clock.end_text()

        return seconds(work)

    ratios = [spent(8_000) / spent(2_000) for _ in range(3)]
    assert min(ratios) < 9, ratios


def seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(2):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)
