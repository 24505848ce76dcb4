"""Words as Pipecat wants them, and the estimate of when each is spoken."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.frames.frames import AggregatedTextProgressFrame, TTSSpeakFrame, TTSTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.tts_service import TextAggregationMode

from megatalker import Checkpoint
from megatalker.prompt.text import speakable
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.timing import FASTEST, SLOWEST, USUAL_PACE, Pace, SpokenWord, WordClock
from megatalker_pipecat.words import cut
from pipecat_stage import perform, turn
from session_stage import engine_on, fakes


def texts(text: str) -> list[str]:
    return [piece.text for piece in cut(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("Hello, there.", ["Hello,", "there."]),
        (" It's 3 o'clock\n- or so. ", ["It's", "3", "o'clock", "- or", "so."]),
        ("Wait ... what", ["Wait", "... what"]),
        ("Fine \N{THUMBS UP SIGN}", ["Fine"]),
        ("...", []),
        ("你好，世界。", ["你", "好，", "世", "界。"]),  # noqa: RUF001 - Chinese punctuation is meant
        ("我喜欢Python 3。", ["我", "喜", "欢", "Python", "3。"]),
        ("「はい」", ["「は", "い」"]),
        ("안녕하세요 여러분", ["안녕하세요", "여러분"]),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert texts(text) == words


@given(st.text())
def test_nothing_speakable_is_left_out_of_the_words(text: str) -> None:
    assert [c for c in "".join(texts(text)) if c.isalnum()] == [c for c in text if c.isalnum()]
    assert all(map(speakable, texts(text)))


def test_only_words_in_runs_without_spaces_are_joined() -> None:
    assert [piece.joined for piece in cut("我喜欢Python 3 times")] == [True] * 4 + [False] * 2


@given(st.text(alphabet="ab ,.1你。\n-"), st.lists(st.integers(0, 20)), st.floats(0, 10))
def test_text_may_be_cut_anywhere(text: str, cuts: list[int], audio_s: float) -> None:
    whole, pieces = WordClock(Pace()), WordClock(Pace())
    whole.feed(text)
    ends = sorted({min(at, len(text)) for at in cuts} | {0, len(text)})
    for begin, end in pairwise(ends):
        pieces.feed(text[begin:end])
    for clock in (whole, pieces):
        clock.end_text()
    assert pieces.rest(audio_s) == whole.rest(audio_s)


def spoken(clock: WordClock, audio_s: float, step_s: float = 0.08) -> list[SpokenWord]:
    words, made_s = [], 0.0
    while made_s < audio_s:
        made_s = min(made_s + step_s, audio_s)
        words += clock.due(made_s)
    return words + clock.rest(audio_s)


TEXT = "The quick brown fox jumps over the lazy dog, and then it rests."


@pytest.mark.parametrize("audio_s", [0.4, 2.0, 4.0, 9.0])
def test_words_are_spoken_in_order_within_the_audio(audio_s: float) -> None:
    clock = WordClock(Pace())
    clock.feed(TEXT)
    clock.end_text()
    words = spoken(clock, audio_s)
    times = [word.begins_s for word in words]
    assert [word.text for word in words] == TEXT.split()
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] < audio_s


def test_no_word_is_reported_before_its_audio_exists() -> None:
    clock = WordClock(Pace())
    clock.feed(TEXT)
    for made in range(1, 30):
        assert all(word.begins_s < 0.08 * made for word in clock.due(0.08 * made))


def test_no_word_is_spoken_before_its_text_was_there() -> None:
    clock = WordClock(Pace())
    clock.feed("One ")
    assert [word.text for word in clock.due(2.0)] == ["One"]
    clock.feed("two ", heard_s=2.0)
    assert [(word.text, word.begins_s) for word in clock.due(2.5)] == [("two", 2.0)]


def test_the_pace_of_a_voice_is_learned() -> None:
    """A voice half as fast as usual: the second utterance is laid out better than the first."""
    pace = Pace()
    slow_s = sum(piece.units for piece in cut(TEXT)) * USUAL_PACE * 2

    def error() -> float:
        clock = WordClock(pace)
        clock.feed(TEXT)
        clock.end_text()
        middle = spoken(clock, slow_s)[6]
        before = sum(piece.units for piece in cut(TEXT)[:6])
        return abs(middle.begins_s - before * USUAL_PACE * 2)

    first, second, third = error(), error(), error()
    assert third < second < first


@given(st.floats(0.01, 1000), st.floats(0, 1000))
def test_the_pace_stays_within_bounds(units: float, seconds: float) -> None:
    pace = Pace()
    for _ in range(5):
        pace.learn(units, seconds)
    assert FASTEST * USUAL_PACE <= pace.seconds_per_unit <= SLOWEST * USUAL_PACE


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
    """What the assistant aggregator makes of the words is what the language model wrote."""
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
