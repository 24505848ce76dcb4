"""Words of a text, and the estimate of when each is spoken."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_backend import Behaviour, Fakes
from megatalker import Checkpoint, Engine, Settings
from megatalker.engine.speech.text_segmenter import TextSegment
from megatalker.engine.speech.word_times import (
    FASTEST,
    SLOWEST,
    USUAL_PACE,
    BegunSegment,
    Pace,
    SpokenWord,
    WordClock,
    WordCutter,
    cut,
    letters,
)
from megatalker.prompt.text import speakable


def texts(text: str) -> list[str]:
    return [word.text for word in cut(text)]


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
        ("Python我", ["Python", "我"]),
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
    assert text.startswith("".join(word.before + word.text for word in cut(text)))


def test_only_words_in_runs_without_spaces_are_joined() -> None:
    assert [word.joined for word in cut("我喜欢Python 3 times")] == [True] * 4 + [False] * 2


@given(st.text(alphabet="ab ,.1你。\n-"), st.lists(st.integers(0, 20)))
def test_text_may_be_cut_anywhere(text: str, cuts: list[int]) -> None:
    cutter, words = WordCutter(), []
    for begin, end in pairwise(sorted({min(at, len(text)) for at in cuts} | {0, len(text)})):
        words += cutter.feed(text[begin:end])
    assert words + cutter.finish() == cut(text)


@pytest.mark.parametrize("piece", [".", "a", " ", "你", "\u0301", "- "])
def test_the_work_for_a_piece_does_not_grow_with_the_text(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of one message each, such as dot leaders: what was read before is not read again."""
    looked_at = 0

    def count(text: str) -> int:
        nonlocal looked_at
        looked_at += len(text)
        return letters(text)

    monkeypatch.setattr("megatalker.engine.speech.word_times.letters", count)
    clock, segment = WordClock(Pace()), segment_of("")
    for _ in range(3_000):
        clock.feed(piece)
        segment.segment.text += piece
        clock.due(0.0, [segment])
    assert looked_at <= 4 * 3_000 * len(piece)


# ---- the clock

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests."


def segment_of(text: str, *, letters_before: int = 0, begins_s: float = 0.0, cut: bool = False) -> BegunSegment:
    inner = TextSegment.__new__(TextSegment)
    inner.text = text
    return BegunSegment(letters_before, inner, begins_s, cut)


def clock_of(text: str, pace: Pace | None = None, *, sounding: bool = True) -> WordClock:
    clock = WordClock(pace or Pace())
    clock.feed(text)
    clock.end_text()
    if sounding:
        clock.hear(np.ones(1, np.float32), 0.0)
    return clock


def laid_out(
    clock: WordClock, audio_s: float, segments: Sequence[BegunSegment], *, complete: bool = True
) -> list[SpokenWord]:
    words, made_s = [], 0.0
    while made_s < audio_s:
        made_s = min(made_s + 0.08, audio_s)
        words += clock.due(made_s, segments)
        assert all(word.ends_s <= made_s for word in words)
    return words + clock.rest(audio_s, segments, complete=complete)


def assert_in_order(words: Sequence[SpokenWord], audio_s: float) -> None:
    times = [time for word in words for time in (word.begins_s, word.ends_s)]
    assert times == sorted(times)
    assert all(0 <= time <= audio_s for time in times)


@pytest.mark.parametrize("audio_s", [0.4, 2.0, 4.0, 9.0])
def test_words_are_spoken_in_order_within_the_audio(audio_s: float) -> None:
    words = laid_out(clock_of(TEXT), audio_s, [segment_of(TEXT)])
    assert [word.text for word in words] == TEXT.split()
    assert words[0].begins_s == 0
    assert words[-1].ends_s == pytest.approx(audio_s) or audio_s == 9.0  # reported before it was known to be slow
    assert_in_order(words, audio_s)


def test_the_first_word_begins_with_the_first_sound() -> None:
    clock = clock_of(TEXT, sounding=False)
    clock.hear(np.zeros(1920, np.float32), 0.0)
    assert clock.due(0.08, [segment_of(TEXT)]) == []
    clock.hear(np.concatenate([np.zeros(960), np.ones(960)]).astype(np.float32), 0.08)
    assert clock.due(3.0, [segment_of(TEXT)])[0].begins_s == pytest.approx(0.12)


def test_no_word_is_spoken_before_its_text_was_there() -> None:
    clock, segment = WordClock(Pace()), segment_of("One ")
    clock.hear(np.ones(1, np.float32), 0.0)
    clock.feed("One ")
    assert [word.text for word in clock.due(2.0, [segment])] == ["One"]
    clock.feed("two ", made_s=2.0)
    segment.segment.text += "two "
    assert [(word.text, word.begins_s) for word in clock.due(2.5, [segment])] == [("two", 2.0)]


def test_begun_words_are_told_at_once_and_leave_room_for_the_others() -> None:
    clock, words = clock_of(TEXT), []
    for made in range(1, 60):
        found = clock.due(0.08 * made, [segment_of(TEXT)], begun=True)
        assert all(0.08 * (made - 1) <= word.begins_s < 0.08 * made for word in found)
        words += found
        if len(words) == 5:
            break
    words += clock.rest(3.0, [segment_of(TEXT)], complete=True)
    assert [word.text for word in words] == TEXT.split()
    begins = [word.begins_s for word in words]
    assert begins == sorted(begins)
    assert words[-1].ends_s == pytest.approx(3.0)


def test_segments_are_where_they_are() -> None:
    """The second begins late: the first one's words share the time until then."""
    first, second = "One two three.", "Four five."
    segments = [segment_of(first), segment_of(second, letters_before=letters(first), begins_s=5.0)]
    words = laid_out(clock_of(f"{first}\n\n{second}"), 6.0, segments)
    begins = {word.text: word.begins_s for word in words}
    assert begins["Four"] == 5.0
    assert [word.text for word in words] == ["One", "two", "three.", "Four", "five."]
    assert next(word for word in words if word.text == "three.").ends_s == pytest.approx(5.0)
    assert words[3].before == "\n\n"
    assert_in_order(words, 6.0)


def test_a_word_without_an_end_is_reported() -> None:
    clock, letters = WordClock(Pace()), 1024
    for _ in range(letters):
        clock.feed("a")
    clock.feed(" end")
    clock.end_text()
    words = [word.text for word in clock.rest(1.0, [segment_of("a" * letters + " end")], complete=True)]
    assert "".join(words) == "a" * letters + "end"


def test_words_of_a_segment_that_was_not_said_are_not_reported() -> None:
    clock = clock_of("One two. Three four.")
    assert [word.text for word in laid_out(clock, 9.0, [segment_of("One two.")], complete=False)] == ["One", "two."]


def test_words_behind_the_end_of_a_segment_that_was_cut_are_not_reported() -> None:
    first, second = "One two three four five six seven eight nine ten.", "Eleven twelve."
    segments = [
        segment_of(first, cut=True),
        segment_of(second, letters_before=letters(first), begins_s=1.0),
    ]
    words = laid_out(clock_of(f"{first} {second}"), 3.0, segments)
    said = [word.text for word in words]
    assert said[:2] == ["One", "two"]
    assert "ten." not in said
    assert said[-2:] == ["Eleven", "twelve."]
    assert words[-2].begins_s == 1.0
    assert_in_order(words, 3.0)


def test_words_that_are_said_once_more_are_reported_once() -> None:
    """A segment ended too early, and all of it is spoken again."""
    segments = [segment_of(TEXT), segment_of(TEXT, begins_s=0.8)]
    words = laid_out(clock_of(TEXT), 6.0, segments)
    assert [word.text for word in words] == TEXT.split()
    assert_in_order(words, 6.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["One two.", "你好。", "Three, four five", "six"]), st.floats(0, 3)), min_size=1
    ),
    st.booleans(),
    st.data(),
)
def test_times_never_go_back_nor_beyond_the_audio(
    parts: list[tuple[str, float]], complete: bool, data: st.DataObject
) -> None:
    segments, place, at_s = [], 0, 0.0
    for text, seconds in parts:
        cut_short = data.draw(st.booleans())
        segments.append(segment_of(text, letters_before=place, begins_s=at_s, cut=cut_short))
        place, at_s = place + letters(text), at_s + seconds
    begun = segments[: data.draw(st.integers(1, len(segments)))]
    audio_s = at_s if len(begun) == len(segments) else segments[len(begun)].begins_s
    whole = clock_of(" ".join(text for text, _ in parts))
    words = laid_out(whole, audio_s, begun, complete=complete and len(begun) == len(segments))
    assert_in_order(words, audio_s)
    possible = [word for text, _ in parts[: len(begun)] for word in texts(text)]
    assert len(words) <= len(possible)


def test_the_pace_of_a_voice_is_learned() -> None:
    """A voice half as fast as usual: the second utterance is laid out better than the first."""
    pace = Pace()
    slow_s = sum(word.units for word in cut(TEXT)) * USUAL_PACE * 2

    def error() -> float:
        middle = laid_out(clock_of(TEXT, pace), slow_s, [segment_of(TEXT)])[6]
        before = sum(word.units for word in cut(TEXT)[:6])
        return abs(middle.begins_s - before * USUAL_PACE * 2)

    first, second, third = error(), error(), error()
    assert third < second < first


@given(st.floats(0.01, 1000), st.floats(0, 1000))
def test_the_pace_stays_within_bounds(units: float, seconds: float) -> None:
    pace = Pace()
    for _ in range(5):
        pace.learn(units, seconds)
    assert FASTEST * USUAL_PACE <= pace.seconds_per_unit <= SLOWEST * USUAL_PACE


# ---- in the engine

SENTENCES = "One two three four. Five six seven eight. Nine ten eleven."


def engine_on(checkpoint: Checkpoint, *, frames: int | None = 20, **settings: Any) -> Engine:
    fakes = Fakes(talkers={"fake": Behaviour(frames=frames)})
    return Engine.open(Settings(**settings), checkpoint=checkpoint, registry=fakes.registry)


def test_words_of_several_segments(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(tiny_custom_voice, max_segment_chars=24) as engine:
        stream, words = engine.speak(SENTENCES, word_times=True), []
        taken = 0
        for chunk in stream:
            taken += chunk.frames
            words += stream.take_words()
            assert all(word.ends_s <= taken * 0.08 for word in words)
        words += stream.take_words()
        assert stream.take_words() == []
        assert "".join(word.before + word.text for word in words) == SENTENCES
        audio_s, segments = stream.facts().audio_s, stream.facts().segments
    assert_in_order(words, audio_s)
    assert segments == 3
    begins = {word.text: word.begins_s for word in words}
    assert begins["Five"] == pytest.approx(audio_s / 3)
    assert begins["Nine"] == pytest.approx(audio_s * 2 / 3)


async def _words_of(stream: Any) -> list[SpokenWord]:
    words = []
    async for _ in stream:
        words += stream.take_words()
    return words + stream.take_words()


@pytest.mark.parametrize("size", [1, 4, 100])
def test_text_in_pieces(tiny_custom_voice: Checkpoint, size: int) -> None:
    with engine_on(tiny_custom_voice, frames=60, max_segment_chars=10) as engine:
        stream = engine.speak(None, word_times=True)
        for at in range(0, len(SENTENCES), size):
            stream.feed(SENTENCES[at : at + size])
        stream.finish()
        words = asyncio.run(_words_of(stream))
        assert "".join(word.before + word.text for word in words) == SENTENCES
        assert_in_order(words, stream.facts().audio_s)


def test_what_a_limit_of_frames_cut_off_is_not_reported(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(tiny_custom_voice, frames=None, max_segment_chars=10) as engine:
        stream = engine.speak(SENTENCES, word_times=True, max_frames=6)
        words = asyncio.run(_words_of(stream))
        assert stream.finish_reason == "max_frames"
    assert [word.text for word in words] == ["One", "two"][: len(words)]
    assert_in_order(words, 6 * 0.08)


def test_nothing_is_told_unless_it_was_asked_for(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(tiny_custom_voice) as engine:
        assert asyncio.run(_words_of(engine.speak(SENTENCES))) == []


def test_a_cancelled_stream_says_no_word_more(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(tiny_custom_voice, frames=None) as engine:
        stream = engine.speak(SENTENCES, word_times=True)
        next(stream)
        stream.take_words()
        stream.cancel()
        assert list(stream) == []
        assert stream.take_words() == []


def test_words_are_those_of_the_clean_text(tiny_custom_voice: Checkpoint) -> None:
    """A word that was not said, such as a control token's name, is not among them, and each can be sent as JSON."""
    text = "  Well  -  he\u200bllo<|im_end|>,\tyou \ud83d.\n"
    with engine_on(tiny_custom_voice) as engine:
        words = asyncio.run(_words_of(engine.speak(text, word_times=True)))
    assert "".join(word.before + word.text for word in words) == "Well - hello , you"
    assert replace(words[0], begins_s=0, ends_s=0) == SpokenWord("Well", 0, 0)
