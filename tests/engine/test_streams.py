"""Streams of an engine on fake backends: what comes out, in what order, within which limits, and how it ends."""

import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine_stage import TEXT, EngineClock, Opener, codes_of, fakes_with, plain_codes
from fake_backend import CAPABILITIES, Behaviour, FakeCodec, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS
from megatalker.engine import SpeechStream, dispatcher
from megatalker.errors import (
    InvalidRequestError,
)
from megatalker.prompt import Layout
from megatalker.prompt.text import IncrementalTokenizer
from megatalker.voices import Voice
from waiting import HANG_S, eventually


def plain_pcm(codes: list[tuple[int, ...]]) -> np.ndarray:
    codec = FakeCodec(Behaviour())
    return codec.decode([codec.open()], [torch.tensor(codes)])[0].numpy()


# ---- what comes out


@pytest.mark.parametrize("layout", ["upfront", "interleaved"])
def test_codes_and_audio_equal_those_of_a_plain_loop(
    open_engine: Opener, tiny_custom_voice: Checkpoint, layout: Layout
) -> None:
    stream = open_engine().speak(TEXT, seed=5, layout=layout, return_codes=True)
    chunks = list(stream)
    expected = plain_codes(tiny_custom_voice, TEXT, 5, layout, frames=30)
    assert [tuple(row) for chunk in chunks for row in chunk.codes.tolist()] == expected
    np.testing.assert_array_equal(np.concatenate([chunk.pcm for chunk in chunks]), plain_pcm(expected))
    assert (stream.finish_reason, stream.error, stream.seed, stream.backend) == ("eos", None, 5, "fake")


def test_chunk_facts_add_up(open_engine: Opener) -> None:
    stream = open_engine().speak(TEXT)
    chunks = list(stream)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert chunks[0].frames == 1
    assert all(len(chunk.pcm) == chunk.frames * FRAME_SAMPLES and chunk.pcm.dtype == np.float32 for chunk in chunks)
    assert all(later.sample_offset == earlier.sample_offset + len(earlier.pcm) for earlier, later in pairwise(chunks))
    assert all(chunk.requested_at <= chunk.decoded_at <= chunk.delivered_at for chunk in chunks)
    assert all(chunk.codes is None for chunk in chunks)
    facts = stream.facts()
    assert (facts.frames, facts.chunks, facts.segments, facts.finish_reason) == (30, len(chunks), 1, "eos")
    assert facts.audio_s == pytest.approx(30 * FRAME_SECONDS)
    assert facts.ttfc_s == pytest.approx(chunks[0].delivered_at - chunks[0].requested_at)
    assert facts.rtf == pytest.approx((chunks[-1].decoded_at - chunks[0].requested_at) / facts.audio_s)


def test_the_first_chunk_needs_one_frame_and_no_later_one(open_engine: Opener) -> None:
    more = threading.Event()

    def wait(call: int) -> None:
        assert call == 0 or more.wait(HANG_S)

    fakes = fakes_with(on_decode=wait)
    stream = open_engine(fakes).speak(TEXT)
    assert next(stream).frames == 1
    assert fakes.loaded["noise"].calls == [[1]]
    more.set()
    assert sum(chunk.frames for chunk in stream) == 29


def test_seeds_are_random_recorded_and_repeatable(open_engine: Opener) -> None:
    engine = open_engine()
    first, second = engine.speak(TEXT, return_codes=True), engine.speak(TEXT, return_codes=True)
    assert first.seed != second.seed
    codes = codes_of(first)
    assert codes != codes_of(second)
    assert codes_of(engine.speak(TEXT, seed=first.seed, return_codes=True)) == codes
    sampling = replace(engine.checkpoint.sampling, seed=first.seed)
    assert codes_of(engine.speak(TEXT, sampling=sampling, return_codes=True)) == codes


def test_a_reference_is_heard_by_the_codec_and_by_nobody_else(open_engine: Opener, tiny_base: Checkpoint) -> None:
    reference = torch.randint(0, 64, (5, tiny_base.config.num_code_groups), generator=torch.Generator().manual_seed(0))
    x_vector = torch.ones(tiny_base.config.talker.hidden_size)
    voice = Voice(x_vector=x_vector, reference_codes=reference, reference_text_ids=(5, 6, 7))
    stream = open_engine(checkpoint=tiny_base).speak(TEXT, voice=voice, return_codes=True)
    chunks = list(stream)
    codes = [tuple(row) for chunk in chunks for row in chunk.codes.tolist()]
    expected = plain_pcm([tuple(row) for row in reference.tolist()] + codes)[5 * FRAME_SAMPLES :]
    np.testing.assert_array_equal(np.concatenate([chunk.pcm for chunk in chunks]), expected)


# ---- text


def test_text_fed_word_by_word_gives_the_codes_of_the_whole(open_engine: Opener) -> None:
    engine = open_engine()
    whole = codes_of(engine.speak(TEXT, seed=9, layout="interleaved", return_codes=True))
    stream = engine.speak(None, seed=9, return_codes=True)
    for word in TEXT.split(" "):
        stream.feed(word + " ")
    stream.finish()
    assert codes_of(stream) == whole


def test_a_stream_without_text_waits_and_is_not_fed_pad(
    open_engine: Opener, engine_clock: EngineClock, tiny_custom_voice: Checkpoint
) -> None:
    fakes = Fakes()
    stream = open_engine(fakes).speak(None, seed=4, return_codes=True)
    stream.feed("Hello there, ")
    known = len(IncrementalTokenizer(tiny_custom_voice.tokenizer).feed("Hello there, "))
    early = [next(stream)]
    while sum(chunk.frames for chunk in early) < known - 1:
        early.append(next(stream))
    assert len(fakes.loaded["fake"].calls) == known - 1, "one for each row that is certain; the first is in the prompt"
    eventually(lambda: stream._link.utterance.progress.playback.excused, "it waits for text")
    engine_clock.passed_s += 2 * known * FRAME_SECONDS  # playback has run dry by now
    stream.feed("this is a sentence of a few words.")
    stream.finish()
    rest = codes_of(stream)
    codes = [tuple(row) for chunk in early for row in chunk.codes.tolist()] + rest
    assert codes == plain_codes(tiny_custom_voice, TEXT, 4, "interleaved", frames=30)
    assert stream.facts().underruns == 0, "the caller was late, not the engine"


def test_one_that_speaks_beside_streams_without_text_is_alone(
    open_engine: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where several come at one moment, others are waited for."""
    monkeypatch.setattr(dispatcher, "ARRIVALS_APART_S", 0.5 * HANG_S)
    engine = open_engine()
    resting = [engine.speak(None) for _ in range(2)]
    began = time.monotonic()
    next(engine.speak(TEXT))
    assert time.monotonic() - began < 0.5 * HANG_S
    assert not any(stream.finish_reason for stream in resting)


def test_feeding_nothing_ends_without_audio(open_engine: Opener) -> None:
    stream = open_engine().speak(None)
    stream.feed("  ")
    stream.finish()
    stream.finish()
    assert (stream.read_all().size, stream.finish_reason) == (0, "eos")


def test_text_can_only_be_fed_to_a_stream_that_is_open_for_it(open_engine: Opener) -> None:
    engine = open_engine(max_text_chars=20)
    for stream in (engine.speak("Hello"), engine.speak(None)):
        stream.finish()
        with pytest.raises(InvalidRequestError, match="all its text"):
            stream.feed("more")
    stream = engine.speak(None)
    stream.feed("fifteen letters")
    with pytest.raises(InvalidRequestError, match="max_text_chars"):
        stream.feed("and six")
    stream = engine.speak(None, clean_text=False)
    stream.feed("Hello ")
    for bad in ("<|im_end|>", "\0", "\udc00", "\ud83d!"):
        with pytest.raises(InvalidRequestError):
            stream.feed(bad)
    stream.feed("there.")
    stream.finish()
    assert stream.read_all().size
    assert stream.finish_reason == "eos"


def test_an_early_end_of_speech_continues_with_the_text_not_read(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=4))
    whole = engine.speak(TEXT, seed=9, layout="interleaved", return_codes=True)
    codes = codes_of(whole)
    assert whole.facts().segments > 1
    assert len(codes) == 4 * whole.facts().segments
    stream = engine.speak(None, seed=9, return_codes=True)
    for letter in TEXT:
        stream.feed(letter)
    stream.finish()
    assert codes_of(stream) == codes
    upfront = engine.speak(TEXT, seed=9, layout="upfront", return_codes=True)
    assert (len(codes_of(upfront)), upfront.facts().segments) == (4, 1)


def test_long_text_is_one_continuous_stream_of_several_segments(
    open_engine: Opener, tiny_custom_voice: Checkpoint
) -> None:
    fakes = Fakes()
    stream = open_engine(fakes, max_segment_chars=30).speak(
        "One sentence is here. Another one is there.", seed=1, return_codes=True
    )
    chunks = list(stream)
    codes = [tuple(row) for chunk in chunks for row in chunk.codes.tolist()]
    assert codes[:30] == plain_codes(tiny_custom_voice, "One sentence is here.", 1, "upfront", frames=30)
    seeds = [request.sampling.seed for request in fakes.loaded["fake"].prefills]
    assert seeds[0] == 1 != seeds[1]
    assert codes[30:] == plain_codes(tiny_custom_voice, "Another one is there.", seeds[1], "upfront", frames=30)
    np.testing.assert_array_equal(np.concatenate([chunk.pcm for chunk in chunks]), plain_pcm(codes))
    assert stream.facts().segments == 2


# ---- order and pace


def test_a_newcomer_is_served_before_streams_that_have_audio(open_engine: Opener) -> None:
    """Its first frame is in the very next decode call, alone where the backend takes streams one after another."""
    newcomer: list[SpeechStream] = []

    def arrive(call: int) -> None:
        if call == 10:
            newcomer.append(engine.speak(TEXT))

    fakes = fakes_with(capabilities=replace(CAPABILITIES, batch=False), on_decode=arrive)
    engine = open_engine(fakes)
    with engine.borrow_backends():
        running = [engine.speak(TEXT) for _ in range(3)]
    for stream in running:
        stream.read_all()
    newcomer[0].read_all()
    calls = fakes.loaded["fake"].calls
    assert calls[11] == [4]


def test_unbatched_streams_advance_side_by_side(open_engine: Opener) -> None:
    fakes = fakes_with(capabilities=replace(CAPABILITIES, batch=False), frames=40)
    engine = open_engine(fakes)
    with engine.borrow_backends():
        streams = [engine.speak(TEXT) for _ in range(4)]
    for stream in streams:
        stream.read_all()
    calls = [handle for call in fakes.loaded["fake"].calls for handle in call]
    last_first = max(calls.index(handle) for handle in (1, 2, 3, 4))
    assert last_first < 20, "all four have begun before any is far ahead"
    ends = [len(calls) - calls[::-1].index(handle) for handle in (1, 2, 3, 4)]
    assert max(ends) - min(ends) < 40, "none is left to the end"


def test_a_batching_backend_gets_all_ready_streams_in_one_call_up_to_its_limit(
    open_engine: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    fakes = fakes_with(capabilities=replace(CAPABILITIES, max_streams=3))
    engine = open_engine(fakes, max_streams=8)
    assert "talker backend fake holds 3 streams at a time, max_streams is 8: the others wait" in caplog.messages
    with engine.borrow_backends():
        streams = [engine.speak(TEXT) for _ in range(5)]
    for stream in streams:
        assert len(stream.read_all()) == 30 * FRAME_SAMPLES
    assert max(len(call) for call in fakes.loaded["fake"].calls) == 3


def test_a_stream_keeps_within_its_lead_over_playback(open_engine: Opener) -> None:
    chunks = list(open_engine(fakes_with(frames=12)).speak(TEXT, max_ahead_s=0.4))
    begun, audio = chunks[0].decoded_at, 0.0
    for chunk in chunks:
        audio += chunk.frames * FRAME_SECONDS
        assert audio - (chunk.decoded_at - begun) <= 0.4 + 1e-6
    assert audio == pytest.approx(12 * FRAME_SECONDS)


def test_streams_do_not_influence_each_other(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    engine = open_engine(max_streams=3)
    texts = [f"Number {index} says something {'more ' * index}" for index in range(7)]
    streams = [engine.speak(text, seed=index, return_codes=True) for index, text in enumerate(texts)]
    for index, stream in enumerate(streams):
        assert codes_of(stream) == plain_codes(tiny_custom_voice, texts[index].strip(), index, "upfront", frames=30)
