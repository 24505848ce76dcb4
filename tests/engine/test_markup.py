"""Markup in an engine's text: pauses to the sample, marks, voices in turn, and that plain text is left alone."""

from typing import Any

import numpy as np
import pytest
import torch

from engine_stage import Opener, fakes_with, plain_codes
from marked_speech import OPTIONS, SEED, codes, fed, require_whole, samples, speak
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import Chunk, Continuation, Engine, ReachedMark, SpeechStream
from megatalker.engine.speech.joints import EDGE_SAMPLES
from megatalker.errors import InvalidRequestError, MarkupError
from megatalker.settings import Settings
from megatalker.voices import Voice
from spoken_text import SpokenText


def silences(chunks: list[Chunk]) -> list[tuple[int, int]]:
    """The first sample of each pause, and its number of samples; pauses that touch are one."""
    found: list[tuple[int, int]] = []
    for chunk in chunks:
        if not chunk.frames and len(chunk.pcm):
            if found and sum(found[-1]) == chunk.sample_offset:
                found[-1] = found[-1][0], found[-1][1] + len(chunk.pcm)
            else:
                found.append((chunk.sample_offset, len(chunk.pcm)))
    return found


@pytest.mark.parametrize(("written", "length"), [("1ms", 24), ("400ms", 9600), ("1.23456s", 29629), ("10s", 240_000)])
@pytest.mark.parametrize("frames", [4, 9])
def test_a_pause_is_as_long_as_it_is_written_to_the_sample(
    written: str, length: int, frames: int, open_engine: Opener
) -> None:
    engine = open_engine(fakes_with(frames=frames))
    plain = speak(engine, "Ready now.\n\nGo now.", "none")
    for chunks in (
        speak(engine, f"Ready now.[pause:{written}]Go now."),
        fed(engine, f"Ready now.[pause:{written}]Go now."),
    ):
        require_whole(chunks)
        assert codes(chunks) == codes(plain)
        cut = frames * 1920
        assert silences(chunks) == [(cut, length)]
        speech, paused = samples(plain), samples(chunks)
        assert len(paused) == len(speech) + length
        assert np.array_equal(paused[:cut], speech[:cut])
        assert not paused[cut + EDGE_SAMPLES : cut + length].any()
        assert np.array_equal(paused[cut + length + EDGE_SAMPLES :], speech[cut + EDGE_SAMPLES :])


def test_a_pause_does_not_click(open_engine: Opener) -> None:
    """No step at either edge is larger than a hundredth of the wave that it cuts off, which is noise here."""
    chunks = speak(open_engine(fakes_with(frames=4)), "Ready now.[pause:400ms]Go now.")
    paused, (begin, length) = samples(chunks), silences(chunks)[0]
    assert np.abs(paused[:begin]).max() > 0.3
    edges = [paused[begin - 1 : begin + EDGE_SAMPLES + 2], paused[begin + length - 2 : begin + length + 2]]
    assert max(np.abs(np.diff(edge)).max() for edge in edges) < 0.05
    falling = paused[begin : begin + EDGE_SAMPLES]
    assert np.abs(falling).max() <= abs(paused[begin - 1])
    assert (np.diff(np.abs(falling)) <= 1e-7).all()
    rising = paused[begin + length : begin + length + EDGE_SAMPLES]
    assert np.square(rising[: EDGE_SAMPLES // 4]).mean() < np.square(paused[:begin]).mean() / 50


@pytest.mark.parametrize(
    ("text", "pauses", "paragraphs"),
    [
        ("[pause:500ms]Hello.", [(0, 12000)], "Hello."),
        ("Hello.[pause:500ms]", [(5 * 1920, 12000)], "Hello."),
        ("One.[pause:300ms] [pause:200ms]Two.", [(5 * 1920, 12000)], "One.\n\nTwo."),
        ("One.[pause:300ms]... [pause:200ms]Two.", [(5 * 1920, 12000)], "One.\n\nTwo."),
        ("[pause:10ms]One.[pause:20ms]Two.[pause:30ms]", [(0, 240), (9840, 480), (19920, 720)], "One.\n\nTwo."),
        ("One.[pause:0s]Two.", [], "One.\n\nTwo."),
    ],
)
def test_pauses_stand_anywhere(text: str, pauses: Any, paragraphs: str, open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=5))
    for chunks in (speak(engine, text), fed(engine, text), fed(engine, text, size=7)):
        require_whole(chunks)
        assert silences(chunks) == pauses
        assert codes(chunks) == codes(speak(engine, paragraphs, "none"))


def test_a_text_may_be_a_pause_alone(open_engine: Opener) -> None:
    for chunks in (speak(open_engine(), "[pause:250ms]"), speak(open_engine(), '<break time="250ms"/>')):
        assert silences(chunks) == [(0, 6000)]
        assert len(chunks) == 1
        assert chunks[0].final


def test_pauses_are_audio_in_hand(open_engine: Opener) -> None:
    """After a long pause the stream waits as it does after speech of that length."""
    engine = open_engine(fakes_with(frames=3))
    stream = engine.speak("One now.[pause:10s]Two now.", markup="tags", max_ahead_s=1.0, **OPTIONS)
    heard = []
    for chunk in stream:
        heard.append(chunk)
        if not chunk.frames:
            break
    assert stream.finish_reason is None
    assert stream.facts().audio_s == pytest.approx(3 * 0.08 + 10)
    assert stream.facts().underruns == 0
    stream.cancel()


def test_paragraphs_and_sentences_of_ssml_end_segments(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken, engine = SpokenText(monkeypatch), open_engine(fakes_with(frames=8))
    text = "<speak><p>One here. <s>Two</s> Three.</p>\n\nFour <sub alias='for five'>45</sub></speak>"
    for say in (speak, fed):
        chunks = say(engine, text)
        assert spoken.take() == ["One here.", "Two", "Three.", "Four for five"]
        assert len(codes(chunks)) == 32


def test_marks_are_told_at_their_sample(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=5))
    text = "[mark:a]One.[pause:100ms][mark:b][pause:100ms]Two.[mark:c]Three.[mark:d]"
    for chunks in (speak(engine, text), fed(engine, text)):
        require_whole(chunks)
        assert [mark for chunk in chunks for mark in chunk.marks] == [
            ReachedMark("a", 0),
            ReachedMark("b", 5 * 1920 + 2400),
            ReachedMark("c", 10 * 1920 + 4800),
            ReachedMark("d", 15 * 1920 + 4800),
        ]


def test_word_times_leave_pauses_out(open_engine: Opener) -> None:
    stream = open_engine(fakes_with(frames=5)).speak(
        "One two.[pause:2s]Three four.", markup="tags", word_times=True, seed=SEED
    )
    stream.read_all()
    words = stream.take_words()
    assert [word.text for word in words] == ["One", "two.", "Three", "four."]
    assert words[1].ends_s <= 0.4 + 1e-6
    assert words[2].begins_s >= 2.4 - 1e-6


def test_pieces_go_on_over_pauses(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=2))
    whole = samples(speak(engine, "One.[pause:33ms]Two."))
    pieces = list(engine.speak("One.[pause:33ms]Two.", markup="tags", **OPTIONS).pieces(0.02))
    assert {len(piece) for piece in pieces} == {480}
    joined = np.concatenate(pieces)
    assert np.array_equal(joined[: len(whole)], whole)
    assert len(joined) - len(whole) < 480
    assert not joined[len(whole) :].any()


# ---- several voices


def test_each_voice_says_what_it_would_say_alone(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    own, other = list(tiny_custom_voice.config.speakers)[:2]
    engine = open_engine(fakes_with(frames=6))
    parts = [("Hello there.", own), ("Who is it?", other), ("It is me.\n\nOpen up.", own)]
    alone = [speak(engine, text, "none", voice=voice) for text, voice in parts]
    text = f"Hello there.[voice:{other}]Who is it?[/voice]It is me.\n\nOpen up."
    ssml = f"Hello there.<voice name='{other}'>Who is it?</voice>It is me.\n\nOpen up."
    anna = "Hello there.[voice:Anna]Who is it?[/voice]It is me.\n\nOpen up."
    for chunks in (
        speak(engine, text, voice=own),
        fed(engine, text, voice=own),
        speak(engine, ssml, voice=own),
        speak(engine, anna, voice=own, cast={"anna": other}),
        fed(engine, anna, voice=own, cast={"anna": Voice.named(other)}),
    ):
        require_whole(chunks)
        assert codes(chunks) == [row for part in alone for row in codes(part)]
        assert not silences(chunks)


def test_cloned_voices_speak_in_turn_from_their_own_reference(tiny_base: Checkpoint, open_engine: Opener) -> None:
    def voice(seed: int) -> Voice:
        generator = torch.Generator().manual_seed(seed)
        references = torch.randint(0, 64, (5, tiny_base.config.num_code_groups), generator=generator)
        x_vector = torch.full((tiny_base.config.talker.hidden_size,), 0.1 * (seed + 1))
        return Voice(x_vector=x_vector, reference_codes=references, reference_text_ids=(5, 6, 7))

    settings = {"device": "cpu", "backend": "compiled", "codec": "streaming", "short_speech": "believe"}
    compiled = {"compiled": {"compile": "off"}}
    wishes: dict[str, Any] = {"max_frames": 40}
    cast = {"mina": voice(1), "robin": voice(2)}
    with Engine.open(
        Settings.model_validate(settings | {"backends": compiled, "max_segment_frames": 8}), checkpoint=tiny_base
    ) as engine:
        parts = [("I am the first.", voice(0)), ("I am the second.", voice(1)), ("And I the third.", voice(2))]
        alone = [speak(engine, text, "none", voice=one, **wishes) for text, one in parts]
        text = "I am the first.[voice:mina]I am the second.[voice:robin][pause:50ms]And I the third."
        for chunks in (
            speak(engine, text, voice=voice(0), cast=cast, **wishes),
            fed(engine, text, voice=voice(0), cast=cast, **wishes),
        ):
            assert codes(chunks) == [row for part in alone for row in codes(part)]
            assert [length for _, length in silences(chunks)] == [1200]
            heard, at = samples(chunks), 0
            for place, part in enumerate(alone):
                right = samples(part)
                begin = EDGE_SAMPLES if place else 0
                np.testing.assert_allclose(heard[at + begin : at + len(right)], right[begin:], atol=1e-5)
                at += len(right) + (1200 if place == 1 else 0)


# ---- going on elsewhere


@pytest.mark.slow
def test_another_engine_goes_on_between_pauses_and_marks_and_voices(tiny_custom_voice: Checkpoint) -> None:
    settings = Settings.model_validate(
        {
            "device": "cpu",
            "backend": "compiled",
            "codec": "streaming",
            "backends": {"compiled": {"compile": "off"}},
            "max_segment_frames": 6,
            "max_chunk_frames": 2,
            "short_speech": "repeat",
        }
    )
    other = list(tiny_custom_voice.config.speakers)[1]
    text = f"[pause:70ms]One.[pause:300ms][mark:a]Two.[voice:{other}]Three.[mark:b][/voice]Four.[pause:1s][mark:c]"
    with Engine.open(settings, checkpoint=tiny_custom_voice) as engine:
        whole = speak(engine, text)
        assert len(silences(whole)) == 3
        for heard in range(len(whole) + 1):
            after = Continuation.after(whole[:heard])
            stream = engine.speak_for("", text, markup="tags", after=after, **OPTIONS)
            rest = list(stream)
            assert codes(whole[:heard] + rest) == codes(whole)
            assert [chunk.marks for chunk in whole[:heard] + rest if chunk.marks] == [
                chunk.marks for chunk in whole if chunk.marks
            ]
            again, right = samples([*whole[:heard], *rest]), samples(whole)
            assert len(again) == len(right)
            edge = sum(len(chunk.pcm) for chunk in whole[:heard])
            differs = np.flatnonzero(np.abs(again - right) > 1e-5)
            assert all(edge <= place < edge + EDGE_SAMPLES for place in differs), "the sample before is not known there"
            assert not after or stream.facts().audio_s == pytest.approx(len(right) / SAMPLE_RATE)


# ---- options


@pytest.mark.parametrize("wishes", [{}, {"markup": "none"}, {"clean_text": False}])
def test_nothing_is_read_as_markup_unless_it_is_asked_for(
    wishes: dict[str, Any], open_engine: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken, engine = SpokenText(monkeypatch), open_engine(fakes_with(frames=30))
    text = "A [pause:1s] b <break/> c & d"
    stream = engine.speak(text, **OPTIONS | wishes)
    assert all(chunk.frames for chunk in stream)
    assert spoken.take() == [text]


@pytest.mark.parametrize("wishes", [{}, {"markup": "none"}])
def test_codes_without_markup_are_those_of_no_engine_at_all(
    wishes: dict[str, Any], open_engine: Opener, tiny_custom_voice: Checkpoint
) -> None:
    text = "A [pause:1s] b <break/> c & d"
    chunks = list(open_engine(fakes_with(frames=30)).speak(text, **OPTIONS | wishes))
    right = plain_codes(tiny_custom_voice, text, SEED, "interleaved", 30)
    assert codes(chunks) == list(map(list, right))


def test_the_setting_holds_unless_a_request_says_otherwise(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=3), markup="ssml")
    assert silences(list(engine.speak("A<break time='1s'/>", **OPTIONS)))
    assert not silences(list(engine.speak("A<break time='1s'/>", markup="none", **OPTIONS)))
    assert not silences(list(engine.speak("A<break time='1s'/>", clean_text=False, **OPTIONS)))
    with pytest.raises(ValueError, match="markup"):
        Settings.model_validate({"markup": "html"})


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"markup": "html"}, "markup is 'html', expected 'none', 'tags' or 'ssml'"),
        ({"markup": "tags", "clean_text": False}, "markup changes the text, and clean_text=False gives the model"),
        ({"cast": {"a": "b"}}, "cast names the voices of a text in markup; ask for markup 'tags' or 'ssml', too"),
        ({"markup": "tags", "cast": ["a"]}, r"cast is \['a'\], expected at most 64 voices"),
        ({"markup": "tags", "cast": {"a b": "x"}}, "cast has a voice 'a b', expected names"),
        ({"markup": "tags", "cast": {"a": "x", "A": "y"}}, "cast has a voice 'a', expected names that differ"),
        ({"markup": "tags", "cast": {"a": "nobody"}}, "nobody"),
    ],
)
def test_impossible_options_are_refused(wishes: dict[str, Any], message: str, open_engine: Opener) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        open_engine().speak("Hi.", **wishes)


def test_a_faulty_text_is_refused_at_once(open_engine: Opener) -> None:
    with pytest.raises(MarkupError, match="line 2, column 2: the pause is 'long'"):
        open_engine().speak("Hi.\n [pause:long]", markup="tags")


def test_a_fault_in_text_that_arrives_ends_the_utterance_after_what_was_made(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=3))
    stream: SpeechStream = engine.speak(None, markup="ssml", **OPTIONS)
    stream.feed("Hello there.<break time='1s'/>")
    first = next(stream)
    with pytest.raises(MarkupError, match="line 1, column 37: unknown element <b>"):
        stream.feed("It is <b>bold</b>")
    with pytest.raises(MarkupError, match="line 1, column 37"):
        list(stream)
    assert first.frames
    assert stream.finish_reason == "error"
    unfinished = engine.speak(None, markup="ssml", **OPTIONS)
    unfinished.feed("<p>Hello")
    with pytest.raises(MarkupError, match="line 1, column 9: the text ends within <p>"):
        unfinished.finish()
    with pytest.raises(MarkupError, match="the text ends within <p>"):
        unfinished.read_all()
