"""Text that a model leaves out is said again or reported, and what follows it is spoken."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from engine_stage import Opener, codes_of, fakes_with
from fake_backend import CAPABILITIES, Behaviour, Fakes, ends_after
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine.speech.speech_rate import is_short, letters, resume_at, spoken_chars
from megatalker.errors import BackendFaultError
from megatalker.interfaces import Frame
from megatalker.sampling import SamplingParams
from waiting import eventually

FOUR = "The first one is here. A second one follows. Then the third is said. The fourth ends it."
SENTENCES = ["The first one is here.", "A second one follows.", "Then the third is said.", "The fourth ends it."]
GREEDY = SamplingParams(do_sample=False, predictor_do_sample=False)


def texts(fakes: Fakes) -> list[int]:
    """Rows of each prompt, as the backend got them."""
    return [len(request.embeds) for request in fakes.loaded["fake"].prefills]


# ---- a segment's limit


@pytest.mark.parametrize("layout", ["upfront", "interleaved"])
def test_a_segment_that_reaches_its_limit_ends_alone(open_engine: Opener, layout: str) -> None:
    engine = open_engine(fakes_with(frames=None), max_segment_frames=20, max_segment_chars=24, short_speech="repeat")
    stream = engine.speak(FOUR, layout=layout)
    frames = len(stream.read_all()) // FRAME_SAMPLES
    facts = stream.facts()
    assert (frames, facts.segments, facts.finish_reason) == (4 * 20, 4, "incomplete")
    assert 4 <= facts.unsaid_chars < len(FOUR) / 2
    assert engine.metrics().incomplete == 1


def test_the_sentences_that_a_cut_segment_did_not_reach_are_spoken_next(open_engine: Opener) -> None:
    """All four are one segment."""
    fakes = ends_after(None, None, 25)
    stream = open_engine(fakes, max_segment_frames=30, short_speech="repeat").speak(FOUR)
    stream.read_all()
    facts, prompts = stream.facts(), texts(fakes)
    assert (facts.segments, facts.finish_reason, facts.frames) == (3, "incomplete", 30 + 30 + 25)
    assert prompts == sorted(set(prompts), reverse=True), "less to say each time"
    assert 1 <= facts.unsaid_chars < 10


def test_the_sentences_that_short_speech_did_not_reach_are_spoken_next(open_engine: Opener) -> None:
    """The checkpoint ``demo`` did so, and said one sentence of three."""
    fakes = ends_after(14, 14, 25)
    text = "Good morning. How are you? Good night."
    stream = open_engine(fakes, short_speech="repeat").speak(text)
    stream.read_all()
    facts, prompts = stream.facts(), texts(fakes)
    assert (facts.segments, facts.finish_reason, facts.unsaid_chars) == (3, "eos", 0)
    assert prompts[0] == prompts[1] > prompts[2]


def test_only_the_segment_that_is_too_long_is_cut(open_engine: Opener) -> None:
    fakes = ends_after(19, None, 19)
    stream = open_engine(fakes, max_segment_frames=20, max_segment_chars=24, short_speech="repeat").speak(FOUR)
    assert len(stream.read_all()) == (3 * 19 + 20) * FRAME_SAMPLES
    facts = stream.facts()
    assert (facts.segments, facts.finish_reason) == (4, "incomplete")
    assert 1 <= facts.unsaid_chars <= len(SENTENCES[1])


def test_text_that_was_not_read_at_the_limit_is_spoken_next(open_engine: Opener) -> None:
    """A token is read with each frame: a segment of more tokens than frames goes on in another decoder stream."""
    fakes = fakes_with(frames=None)
    stream = open_engine(fakes, max_segment_frames=5).speak(FOUR, layout="interleaved")
    stream.read_all()
    facts = stream.facts()
    assert facts.segments > 2
    assert facts.frames == 5 * facts.segments
    assert facts.finish_reason == "incomplete"


def test_text_fed_in_pieces_goes_on_after_a_limit(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_segment_frames=30, max_segment_chars=24)
    stream = engine.speak(None)
    for letter in FOUR:
        stream.feed(letter)
    stream.finish()
    stream.read_all()
    assert (stream.facts().segments, stream.finish_reason) == (4, "incomplete")


def test_the_bound_of_the_request_ends_it_and_counts_what_is_left(open_engine: Opener) -> None:
    stream = open_engine(fakes_with(frames=30), max_segment_chars=24).speak(FOUR, max_frames=35)
    assert len(stream.read_all()) == 35 * FRAME_SAMPLES
    facts = stream.facts()
    assert facts.finish_reason == "max_frames"
    least = len(SENTENCES[2]) + len(SENTENCES[3])  # which did not begin
    assert least < facts.unsaid_chars < least + len(SENTENCES[1])


# ---- runaway


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_segment_that_runs_away_ends_alone(open_engine: Opener, which: int) -> None:
    def loop(call: int, frames: list[Any]) -> list[Any]:
        stays = [frame.stream == which + 1 and frame.codes is not None for frame in frames]
        frames = [replace(f, codes=(1, *[2] * 15)) if stay else f for f, stay in zip(frames, stays, strict=True)]
        return [f if f.stream == which + 1 or len(spoken(f)) <= 25 else Frame(f.stream, None) for f in frames]

    said: dict[int, list[int]] = {}

    def spoken(frame: Frame) -> list[int]:
        said.setdefault(frame.stream, []).append(0)
        return said[frame.stream]

    engine = open_engine(fakes_with(frames=None, spoil=loop), max_segment_chars=24, short_speech="repeat")
    stream = engine.speak(" ".join(SENTENCES[:3]))
    frames = len(stream.read_all()) // FRAME_SAMPLES
    facts = stream.facts()
    assert (facts.segments, facts.finish_reason) == (3, "runaway")
    assert 2 * 25 + 100 < frames < 2 * 25 + 130
    assert facts.unsaid_chars > 0


def test_a_segment_whose_audio_falls_silent_ends_alone(open_engine: Opener) -> None:
    fakes = ends_after(None, 25)
    fakes.codecs["noise"] = Behaviour(
        spoil=lambda call, chunks: [chunk * 0 if 20 < call < 60 else chunk for chunk in chunks]
    )
    engine = open_engine(fakes, max_segment_chars=24, max_chunk_frames=4)
    stream = engine.speak(" ".join(SENTENCES[:2]))
    stream.read_all()
    assert (stream.facts().segments, stream.finish_reason) == (2, "runaway")
    assert stream.facts().frames < 400


# ---- speech too short for its text


@pytest.mark.parametrize("layout", ["upfront", "interleaved"])
def test_short_speech_is_said_once_more_with_a_seed_of_its_own(
    open_engine: Opener, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for _ in range(2):
        fakes = ends_after(5, 25)
        engine = open_engine(fakes, max_segment_chars=24, short_speech="repeat")
        with caplog.at_level(logging.WARNING, "megatalker"):
            stream = engine.speak(" ".join(SENTENCES[:2]), seed=7, layout=layout, return_codes=True)
            found.append(codes_of(stream))
        facts = stream.facts()
        assert (facts.frames, facts.segments, facts.finish_reason, facts.unsaid_chars) == (5 + 2 * 25, 3, "eos", 0)
        prefills = fakes.loaded["fake"].prefills
        assert (prefills[0].embeds == prefills[1].embeds).all(), "the same words"
        assert len({prefill.sampling.seed for prefill in prefills}) == 3
        assert (engine.metrics().repeated, engine.metrics().incomplete) == (1, 0)
    assert found[0] == found[1], "the same request gives the same codes"
    assert "spoken once more" in caplog.text


@pytest.mark.parametrize("layout", ["upfront", "interleaved"])
def test_speech_that_is_short_again_is_reported(open_engine: Opener, layout: str) -> None:
    fakes = ends_after(25, 5, 5, 25)
    stream = open_engine(fakes, max_segment_chars=24, short_speech="repeat").speak(FOUR, layout=layout)
    stream.read_all()
    facts = stream.facts()
    assert facts.finish_reason == "incomplete"
    assert 5 < facts.unsaid_chars < len(SENTENCES[1])
    if layout == "upfront":  # interleaved, what was not read is spoken as well
        assert (facts.frames, facts.segments) == (3 * 25 + 2 * 5, 5)


def test_speech_without_a_frame_is_short(open_engine: Opener) -> None:
    fakes = ends_after(0)
    stream = open_engine(fakes, short_speech="repeat").speak("Hello.")
    assert (stream.read_all().size, stream.finish_reason, stream.facts().segments) == (0, "incomplete", 2)


def test_what_is_not_drawn_at_random_is_not_said_again(open_engine: Opener) -> None:
    fakes = ends_after(5, 25)
    stream = open_engine(fakes, short_speech="repeat").speak(SENTENCES[0], sampling=GREEDY)
    assert (len(stream.read_all()), stream.finish_reason) == (5 * FRAME_SAMPLES, "incomplete")


@pytest.mark.parametrize(("setting", "reason"), [("report", "incomplete"), ("believe", "eos")])
def test_short_speech_can_be_reported_at_once_or_believed(open_engine: Opener, setting: str, reason: str) -> None:
    fakes = ends_after(5, 25)
    stream = open_engine(fakes, short_speech=setting).speak(SENTENCES[0])
    assert (len(stream.read_all()), stream.finish_reason) == (5 * FRAME_SAMPLES, reason)


def test_a_second_try_moves_to_another_backend_like_any_stream(open_engine: Opener) -> None:
    def speak(fails_at: int | None) -> list[tuple[int, ...]]:
        fakes = ends_after(5, 25)

        def fail(call: int) -> None:
            if call == fails_at:
                raise RuntimeError("no more")

        fakes.talkers["fake"].on_decode = fail
        fakes.talkers["second"] = Behaviour(frames=25)
        engine = open_engine(fakes, backend="fake", fallbacks=("second",), short_speech="repeat")
        stream = engine.speak(SENTENCES[0], seed=3, return_codes=True)
        codes = codes_of(stream)
        assert (stream.finish_reason, len(stream.switches)) == ("eos", 0 if fails_at is None else 1)
        return codes

    assert speak(fails_at=14) == speak(fails_at=None)


def test_text_fed_in_pieces_is_said_again_from_the_start_of_its_segment(open_engine: Opener) -> None:
    fakes = ends_after(3, 25)
    engine = open_engine(fakes, short_speech="repeat")
    stream = engine.speak(None)
    stream.feed("The first one is here and goes on ")
    eventually(lambda: len(fakes.loaded["fake"].prefills) == 2, "the second try has begun")
    stream.feed("until here.")
    stream.finish()
    stream.read_all()
    assert (stream.facts().segments, stream.finish_reason, stream.facts().unsaid_chars) == (2, "eos", 0)


# ---- text after an early end


def test_text_that_comes_after_the_end_counts_as_unsaid(open_engine: Opener) -> None:
    stream = open_engine(fakes_with(frames=None)).speak(None, max_frames=3)
    stream.feed("Hello there. ")
    eventually(lambda: stream.finish_reason == "max_frames", "the bound is reached")
    before = stream.facts().unsaid_chars
    stream.feed("And this.")
    stream.finish()
    assert stream.facts().unsaid_chars == before + len("And this.")


def test_a_failure_counts_what_was_not_said(open_engine: Opener) -> None:
    def fail(call: int) -> None:
        if call == 3:
            raise RuntimeError("no more")

    stream = open_engine(fakes_with(on_decode=fail), max_segment_chars=24).speak(FOUR)
    with pytest.raises(BackendFaultError):
        stream.read_all()
    assert len(" ".join(SENTENCES[1:])) - 3 <= stream.facts().unsaid_chars <= len(FOUR)


def test_a_backend_of_few_positions_says_every_segment(open_engine: Opener) -> None:
    fakes = fakes_with(frames=None, capabilities=replace(CAPABILITIES, max_positions=40))
    stream = open_engine(fakes, max_segment_chars=24, short_speech="repeat").speak(FOUR)
    stream.read_all()
    facts = stream.facts()
    assert (facts.segments, facts.finish_reason, facts.frames) == (4, "incomplete", 4 * 40 - sum(texts(fakes)))


# ---- the rule


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Through thick and thin, they thought things through.", 2.96),  # as measured with the checkpoint demo
        ("Hello.", 0.88),
        ("Call 555 1234.", 3.6),
        ("I.", 0.64),
        ("Nooooooooooooooooooooooooooo!", 0.5),
        ("1,000,000", 0.56),
        ("2000", 0.56),
        ("Qu'est-ce que c'est?", 0.8),
        ("你好。", 0.4),
        ("ありがとう。", 0.6),
        ("감사합니다.", 0.6),
        ("The quick brown fox jumps over the lazy dog " * 3, 105 / 22),  # 22 letters a second: a fast speaker
    ],
)
def test_quick_but_complete_speech_is_not_short(text: str, seconds: float) -> None:
    assert not is_short(text, round(seconds / 0.08))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Good morning.\n\nHow are you?\n\nGood night.", 1.12),  # of which demo said the first paragraph
        ("Hello there, this is a sentence of a few words.", 0.8),
        ("1984 1985 1986 1987", 1.0),
        ("今天天气很好我们去公园吧", 1.0),
        ("Доброе утро, как вы сегодня себя чувствуете?", 1.1),
        ("Yes.", 0.0),
    ],
)
def test_speech_that_cannot_hold_its_text_is_short(text: str, seconds: float) -> None:
    assert is_short(text, round(seconds / 0.08))


def test_what_is_unsaid_is_estimated_by_the_share_of_the_usual_duration() -> None:
    assert letters("one sentence") == 11
    assert spoken_chars("one sentence", 5) == 4  # of 12 characters
    assert spoken_chars("one sentence", 0) == 0
    assert spoken_chars("one sentence", 14) == 12
    assert spoken_chars("...", 0) == 3


@pytest.mark.parametrize(
    ("spoken", "follows"),
    [
        (0, "Two two.\nThree."),
        (4, "Two two.\nThree."),
        (5, "Two two.\nThree."),
        (12, "Two two.\nThree."),
        (14, "Three."),
        (19, "Three."),
        (20, ""),
    ],
)
def test_speech_goes_on_at_the_sentence_that_was_being_spoken(spoken: int, follows: str) -> None:
    text = "One. Two two.\nThree."
    assert text[resume_at(text, spoken) :] == follows


@pytest.mark.parametrize("text", ["", "One", "One two three", "。。。", "\n\n"])
def test_speech_always_goes_on_behind_the_first_sentence(text: str) -> None:
    assert resume_at(text, 0) == len(text)
