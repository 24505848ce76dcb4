"""Parts of a text at another rate or volume: how long they are, and that nothing else of the speech changes."""

import random
import threading
import time

import numpy as np
import pytest

from engine_stage import Opener, fakes_with
from marked_speech import OPTIONS, Pcm, codes, fed, require_whole, samples, speak
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import Chunk, Continuation, ReachedMark
from megatalker.engine.speech.joints import EDGE_SAMPLES
from megatalker.engine.speech.shaped_chunks import Timeline
from megatalker.engine.speech.stretching import PitchKeepingStretch
from megatalker.errors import BackendFaultError, MarkupError
from waiting import HANG_S

FRAMES = 6
SAMPLES = FRAMES * 1920


def stretched(pcm: Pcm, rate: float) -> Pcm:
    stretch = PitchKeepingStretch(rate)
    return np.concatenate([stretch.process(pcm), stretch.finish()])


@pytest.mark.parametrize("rate", [0.25, 0.4, 0.8, 1.01, 1.5, 4.0])
def test_a_part_is_as_long_as_its_rate_says_and_the_rest_is_as_before(rate: float, open_engine: Opener) -> None:
    plain = speak(open_engine(fakes_with(frames=FRAMES)), "One now.\n\nTwo now.\n\nThree now.", "none")
    text = f"One now.<prosody rate='{rate}'>Two now.</prosody>Three now."
    before, part, after = np.split(samples(plain), [SAMPLES, 2 * SAMPLES])
    slow = stretched(part, rate)
    assert len(slow) == round(SAMPLES / rate)
    for most in (1, 2, 25):
        engine = open_engine(fakes_with(frames=FRAMES), max_chunk_frames=most)
        for chunks in (speak(engine, text), fed(engine, text), fed(engine, text, 7)):
            require_whole(chunks)
            assert codes(chunks) == codes(plain)
            heard = np.split(samples(chunks), [SAMPLES, SAMPLES + len(slow)])
            assert np.array_equal(heard[0], before)
            assert np.array_equal(heard[1][EDGE_SAMPLES:], slow[EDGE_SAMPLES:])
            assert np.array_equal(heard[2][EDGE_SAMPLES:], after[EDGE_SAMPLES:])


def test_a_change_does_not_click(open_engine: Opener) -> None:
    text = "One now.<prosody volume='silent'>Two now.</prosody><prosody rate='slow'>Three now.</prosody>Four now."
    heard = samples(speak(open_engine(fakes_with(frames=FRAMES)), text))
    for place in (SAMPLES, 2 * SAMPLES, 2 * SAMPLES + round(SAMPLES / 0.75)):
        assert abs(heard[place] - heard[place - 1]) < 0.05


@pytest.mark.parametrize(("volume", "gain"), [("soft", 0.5), ("-6dB", 10**-0.3), ("+12dB", 10**0.6), ("silent", 0.0)])
def test_a_volume_is_a_factor_and_full_scale_its_bound(volume: str, gain: float, open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=FRAMES))
    plain = samples(speak(engine, "One now.\n\nTwo now.\n\nThree now.", "none"))
    chunks = speak(engine, f"One now.<prosody volume='{volume}'>Two now.</prosody>Three now.")
    require_whole(chunks)
    expected = plain.copy()
    expected[SAMPLES : 2 * SAMPLES] = np.clip(expected[SAMPLES : 2 * SAMPLES] * np.float32(gain), -1.0, 1.0)
    heard = samples(chunks)
    assert len(heard) == len(plain)
    same = heard == expected
    for place in (SAMPLES, 2 * SAMPLES):
        same[place : place + EDGE_SAMPLES] = True
    assert same.all()


def test_text_without_prosody_is_as_before_to_the_bit(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=FRAMES))
    text = "One now.<break time='70ms'/><mark name='a'/>Two <prosody rate='100%' volume='medium'>now</prosody>."
    tags = speak(engine, "One now.[pause:70ms][mark:a]Two now.", "tags")
    chunks = speak(engine, text)
    require_whole(chunks)
    assert np.array_equal(samples(chunks), samples(tags))
    assert codes(chunks) == codes(tags)


def test_pauses_and_marks_stay_true_within_a_part(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=FRAMES))
    text = (
        "<prosody rate='80%'><break time='10ms'/>One.<break time='400ms'/><mark name='a'/>Two.</prosody>"
        "<mark name='b'/>Three.<prosody rate='2'><break time='1s'/></prosody><mark name='c'/>"
    )
    slow = round(SAMPLES / 0.8)
    for chunks in (speak(engine, text), fed(engine, text)):
        require_whole(chunks)
        heard = samples(chunks)
        begin = 240 + slow
        assert not heard[:240].any()
        assert not heard[begin + EDGE_SAMPLES : begin + 9600].any()
        second = begin + 9600 + slow
        assert [mark for chunk in chunks for mark in chunk.marks] == [
            ReachedMark("a", begin + 9600),
            ReachedMark("b", second),
            ReachedMark("c", second + SAMPLES + 24_000),
        ]
        assert len(heard) == second + SAMPLES + 24_000


def test_a_part_within_a_word_and_one_without_text(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=FRAMES))
    heard = samples(speak(engine, "un<prosody rate='50%'>believ</prosody>able"))
    assert len(heard) == 4 * SAMPLES
    alone = speak(engine, "<prosody rate='50%'><break time='250ms'/></prosody>")
    assert [len(chunk.pcm) for chunk in alone] == [6000]
    assert alone[0].final
    assert not speak(engine, "<prosody rate='50%' volume='soft'> ... </prosody>")
    everything = speak(engine, "<speak><prosody rate='50%'>One.</prosody></speak>")
    require_whole(everything)
    assert len(samples(everything)) == 2 * SAMPLES


def test_words_lie_where_they_are_heard(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=FRAMES))
    text = "One two.<prosody rate='50%'>Three four.<break time='1s'/>Five.</prosody>Six seven."
    for streamed in (False, True):
        stream = engine.speak(None if streamed else text, markup="ssml", word_times=True, **OPTIONS)
        if streamed:
            stream.feed(text)
            stream.finish()
        words, taken = [], 0
        for chunk in stream:
            taken += len(chunk.pcm)
            if streamed:
                fresh = stream.take_words()
                assert all(word.ends_s <= taken / SAMPLE_RATE + 1e-6 for word in fresh)
                words += fresh
        words += stream.take_words()
        assert [word.text for word in words] == ["One", "two.", "Three", "four.", "Five.", "Six", "seven."]
        if streamed:  # they may have been told before it was known where their segment ends
            continue
        part = SAMPLES / SAMPLE_RATE
        bounds = [(0, part), (0, part), *[(part, 3 * part)] * 2, (3 * part + 1, 5 * part + 1)]
        bounds += [(5 * part + 1, 6 * part + 1)] * 2
        for word, (begins, ends) in zip(words, bounds, strict=True):
            assert begins - 1e-6 <= word.begins_s < word.ends_s <= ends + 1e-6
        assert words[3].ends_s == pytest.approx(3 * part)
        assert words[6].ends_s == pytest.approx(6 * part + 1)
        assert stream.facts().audio_s == pytest.approx(6 * part + 1)


def test_a_slow_part_is_streamed_and_its_end_waits_for_no_text(open_engine: Opener) -> None:
    more = threading.Event()
    held = fakes_with(frames=FRAMES, on_decode=lambda call: call < 4 or more.wait(HANG_S))
    stream = open_engine(held).speak("<prosody rate='80%'>One now.</prosody>", markup="ssml", **OPTIONS)
    first = next(stream)
    assert first.frames
    more.set()
    list(stream)
    fed_stream = open_engine(fakes_with(frames=FRAMES)).speak(None, markup="ssml", **OPTIONS)
    fed_stream.feed("<prosody rate='50%'>One now.</prosody>")
    heard = 0
    while heard < 2 * SAMPLES:
        heard += len(next(fed_stream).pcm)
    assert fed_stream.finish_reason is None
    fed_stream.cancel()
    assert not list(fed_stream)


def test_a_text_that_ends_within_a_part_is_refused_after_what_was_said(open_engine: Opener) -> None:
    stream = open_engine(fakes_with(frames=FRAMES)).speak(None, markup="ssml", **OPTIONS)
    stream.feed("<prosody rate='50%'>One now.<break time='10ms'/>")
    with pytest.raises(MarkupError, match="the text ends within <prosody>"):
        stream.finish()
    with pytest.raises(MarkupError):
        list(stream)


def test_an_error_within_a_part_comes_after_all_that_was_made(open_engine: Opener) -> None:
    def fail(call: int) -> None:
        if call >= 4:
            raise RuntimeError("the device is on fire")

    stream = open_engine(fakes_with(frames=FRAMES, on_decode=fail)).speak(
        "<prosody rate='50%'>One now.</prosody>", markup="ssml", **OPTIONS
    )
    chunks: list[Chunk] = []
    with pytest.raises(BackendFaultError):
        chunks.extend(stream)
    made = sum(chunk.frames for chunk in chunks)
    assert made == stream.facts().frames > 0
    assert len(samples(chunks)) == 2 * 1920 * made
    assert not any(chunk.final for chunk in chunks)


def test_many_parts_are_the_same_however_text_and_audio_are_cut(open_engine: Opener) -> None:
    chance = random.Random(5)
    engines = [open_engine(fakes_with(frames=FRAMES), max_chunk_frames=most) for most in (1, 8)]
    parts = (
        "One two. ",
        "Three.",
        "<break time='15ms'/>",
        "<mark name='a'/>",
        "<prosody rate='2'> - </prosody>",
        "<prosody rate='60%'>Four. <prosody volume='-3dB'>Five. - </prosody> Six.</prosody>",
        "<prosody rate='50%'>Four.<prosody rate='50%'> - </prosody>Five.</prosody>",
        "<prosody rate='x-fast'>Se<prosody rate='50%'>ven</prosody></prosody>",
    )
    for _ in range(3):
        text, right = "".join(chance.choices(parts, k=6)), None
        for engine, size in ((engines[0], 1), (engines[0], 1000), (engines[1], 5)):
            chunks = fed(engine, text, size)
            require_whole(chunks)
            found = samples(chunks), codes(chunks), [mark for chunk in chunks for mark in chunk.marks]
            right = right or found
            assert np.array_equal(found[0], right[0])
            assert found[1:] == right[1:]


def test_what_follows_a_part_may_come_late(open_engine: Opener) -> None:
    """The end of the part and the pause behind it are one chunk, or two."""
    engine = open_engine(fakes_with(frames=FRAMES))
    for part in ("<prosody rate='50%'>One.</prosody>", "<prosody volume='-3dB'>One.</prosody>"):
        rest = "<break time='15ms'/><mark name='a'/>Two.<prosody rate='2'> - </prosody>Three."
        right = speak(engine, part + rest)
        stream = engine.speak(None, markup="ssml", **OPTIONS)
        stream.feed(part)
        length = SAMPLES * (2 if "rate" in part else 1)
        late: list[Chunk] = []
        while sum(len(chunk.pcm) for chunk in late) < length:
            late.append(next(stream))
        time.sleep(0.1)  # the end of the part has come, too
        stream.feed(rest)
        stream.finish()
        late += stream
        require_whole(late)
        assert np.array_equal(samples(late), samples(right))


def test_another_engine_goes_on_in_the_middle_of_a_part(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=FRAMES), max_chunk_frames=1)
    text = "One now.<prosody rate='50%'>Two now.</prosody>Three now.<mark name='a'/>"
    whole = speak(engine, text)
    for taken in range(1, len(whole)):
        after = Continuation.after(whole[:taken])
        assert after is not None
        stream = engine.speak_for("", text, markup="ssml", after=after, word_times=True, **OPTIONS)
        rest = list(stream)
        assert codes(whole[:taken]) + codes(rest) == codes(whole)
        assert rest[0].sample_offset == sum(len(chunk.pcm) for chunk in whole[:taken])
        assert rest[-1].sample_offset + len(rest[-1].pcm) == pytest.approx(4 * SAMPLES, abs=3840)
        assert [mark.name for chunk in rest for mark in chunk.marks] == ["a"]
        assert max(word.ends_s for word in stream.take_words()) <= rest[-1].sample_offset / SAMPLE_RATE + 0.1


def test_the_engine_counts_how_long_speech_plays(open_engine: Opener) -> None:
    """Speech at four times the rate is not held back for a listener who hears it sooner, and slow speech is."""
    engine = open_engine(fakes_with(frames=200), max_chunk_frames=1)
    fast = engine.speak("<prosody rate='4'>One now.</prosody>", markup="ssml", max_ahead_s=1.0, **OPTIONS)
    heard = [next(fast) for _ in range(45)]
    assert heard[-1].decoded_at - heard[0].decoded_at < 2.0, "3.5 s of the engine's audio, 0.9 s of the listener's"
    fast.cancel()
    slow = engine.speak("<prosody rate='25%'>One now.</prosody>", markup="ssml", max_ahead_s=1.0, **OPTIONS)
    next(slow)
    time.sleep(0.3)
    assert slow.facts().frames <= 6, "of 0.32 s each"
    slow.cancel()


def test_a_timeline_maps_both_ways() -> None:
    line = Timeline(0, 0)
    line.turn(1000, 1000, 0.5)
    line.turn(2000, 3000, 1.0)
    line.turn(2500, 3500, 1.0)
    line.turn(2500, 3500, 2.0)
    for made, heard in ((0, 0), (999, 999), (1500, 2000), (2000, 3000), (2250, 3250), (4500, 4500)):
        assert line.heard_at(made) == pytest.approx(heard)
        assert line.made_at(heard) == pytest.approx(made)
