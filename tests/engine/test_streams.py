"""Streams of an engine on fake backends: what comes out, in what order, within which limits, and how it ends."""

import asyncio
import gc
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fake_backend import CAPABILITIES, Behaviour, FakeCodec, Fakes, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS
from megatalker.checkpoint.template import text_ids
from megatalker.engine import Engine, SpeechStream
from megatalker.errors import (
    BackendUnavailableError,
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    MegatalkerError,
    SettingsError,
    UnsupportedError,
)
from megatalker.interfaces import DecodeStep, StreamRequest
from megatalker.prompt import Layout, PromptBuilder
from megatalker.prompt.text import IncrementalTokenizer
from megatalker.sampling import SamplingParams
from megatalker.settings import Settings
from megatalker.voices import Voice
from waiting import HANG_S

TEXT = "Hello there, this is a sentence of a few words."

Opener = Callable[..., Engine]


@pytest.fixture
def open_engine(tiny_custom_voice: Checkpoint, arrival: None) -> Iterator[Opener]:
    with ExitStack() as stack:

        def opener(
            fakes: Fakes | None = None, *, checkpoint: Checkpoint = tiny_custom_voice, **settings: Any
        ) -> Engine:
            fakes = fakes or Fakes()
            engine = Engine.open(Settings(**settings), checkpoint=checkpoint, registry=fakes.registry)
            return stack.enter_context(engine)

        yield opener


def fakes_with(**changes: Any) -> Fakes:
    return Fakes(talkers={"fake": Behaviour(**changes)})


def codes_of(stream: SpeechStream) -> list[tuple[int, ...]]:
    codes: list[tuple[int, ...]] = []
    for chunk in stream:
        assert chunk.codes is not None
        assert len(chunk.codes) == chunk.frames
        codes += [tuple(row) for row in chunk.codes.tolist()]
    return codes


def plain_codes(checkpoint: Checkpoint, text: str, seed: int, layout: Layout, frames: int) -> list[tuple[int, ...]]:
    """The same utterance without any engine: one prompt, one decoder, one loop."""
    builder = PromptBuilder(checkpoint, torch.device("cpu"), torch.float32)
    voice = Voice.named(next(iter(checkpoint.config.speakers)))
    prompt = builder.build(text_ids(checkpoint.tokenizer, text), voice=voice, layout=layout)
    talker = FakeTalker(checkpoint, Behaviour(frames=frames))
    (stream,) = talker.prefill([StreamRequest(prompt.embeds, replace(checkpoint.sampling, seed=seed))])
    codes = []
    while True:
        row = prompt.trailing[len(codes)] if len(codes) < len(prompt.trailing) else prompt.pad
        frame = talker.decode([DecodeStep(stream, row)])[0]
        if frame.codes is None:
            return codes
        codes.append(frame.codes)


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


def test_a_stream_without_text_waits_and_is_not_fed_pad(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    fakes = Fakes()
    stream = open_engine(fakes).speak(None, seed=4, return_codes=True)
    stream.feed("Hello there, ")
    known = len(IncrementalTokenizer(tiny_custom_voice.tokenizer).feed("Hello there, "))
    early = [next(stream)]
    while sum(chunk.frames for chunk in early) < known - 1:
        early.append(next(stream))
    assert len(fakes.loaded["fake"].calls) == known - 1, "one for each row that is certain; the first is in the prompt"
    threading.Event().wait(2 * known * FRAME_SECONDS)  # playback has run dry by now
    stream.feed("this is a sentence of a few words.")
    stream.finish()
    rest = codes_of(stream)
    codes = [tuple(row) for chunk in early for row in chunk.codes.tolist()] + rest
    assert codes == plain_codes(tiny_custom_voice, TEXT, 4, "interleaved", frames=30)
    assert stream.facts().underruns == 0, "the caller was late, not the engine"


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
    with pytest.raises(InvalidRequestError, match="control token"):
        stream.feed("<|im_end|>")


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


def test_a_batching_backend_gets_all_ready_streams_in_one_call_up_to_its_limit(open_engine: Opener) -> None:
    fakes = fakes_with(capabilities=replace(CAPABILITIES, max_streams=3))
    engine = open_engine(fakes, max_streams=8)
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


# ---- limits and refusals


def test_one_request_too_many_is_refused_and_served_later(open_engine: Opener) -> None:
    go = threading.Event()
    engine = open_engine(fakes_with(on_decode=lambda call: assert_set(go)), max_streams=2, max_waiting=1)
    streams = [engine.speak(TEXT) for _ in range(3)]
    with pytest.raises(CapacityError, match="max_waiting"):
        engine.speak(TEXT)
    go.set()
    for stream in streams:
        stream.read_all()
    assert engine.speak(TEXT).read_all().size


def assert_set(event: threading.Event) -> None:
    assert event.wait(HANG_S)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"text": " "}, InvalidRequestError, "empty"),
        ({"text": "..."}, InvalidRequestError, "letter or digit"),
        ({"text": "x" * 10**6}, InvalidRequestError, "1000000 characters"),
        ({"voice": "nobody"}, InvalidRequestError, "knows"),
        ({"language": "klingon"}, InvalidRequestError, "knows"),
        ({"layout": "sideways"}, InvalidRequestError, "sideways"),
        ({"text": None, "layout": "upfront"}, InvalidRequestError, "whole text"),
        ({"text": b"Hello"}, InvalidRequestError, "bytes"),
        ({"voice": 7}, InvalidRequestError, "voice is 7"),
        ({"language": 7}, InvalidRequestError, "language is 7"),
        ({"instruct": 7}, InvalidRequestError, "instruct"),
        ({"instruct": "<|im_end|> and now something else"}, InvalidRequestError, "instruct: .*control token"),
        ({"instruct": "slowly " * 10**5}, InvalidRequestError, "instruct: .*characters"),
        ({"sampling": {"seed": 1}}, InvalidRequestError, "SamplingParams"),
        ({"max_frames": 0}, InvalidRequestError, "max_frames"),
        ({"max_frames": 10**6}, InvalidRequestError, "max_frames"),
        ({"max_ahead_s": -1.0}, InvalidRequestError, "max_ahead_s"),
        ({"seed": -1}, InvalidRequestError, "seed"),
        ({"seed": 2**64}, InvalidRequestError, "seed"),
    ],
)
def test_a_bad_request_is_refused_at_once_and_the_next_is_served(
    open_engine: Opener, arguments: dict[str, Any], error: type[MegatalkerError], message: str
) -> None:
    engine = open_engine()
    with pytest.raises(error, match=message):
        engine.speak(**({"text": TEXT} | arguments))
    assert engine.speak(TEXT).read_all().size
    assert engine.metrics().streams == 1


def test_a_greedy_backend_refuses_to_sample(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(capabilities=replace(CAPABILITIES, seeded_sampling=False)))
    with pytest.raises(UnsupportedError, match="greedy"):
        engine.speak(TEXT)
    assert engine.speak(TEXT, sampling=SamplingParams(do_sample=False, predictor_do_sample=False)).read_all().size


def test_max_frames_ends_the_stream_with_that_reason(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=50)
    stream = engine.speak(TEXT, max_frames=11)
    assert len(stream.read_all()) == 11 * FRAME_SAMPLES
    assert stream.finish_reason == "max_frames"
    assert len(engine.speak(TEXT).read_all()) == 50 * FRAME_SAMPLES


def test_frames_are_clamped_to_the_positions_of_the_backend_and_a_prompt_too_long_is_refused(
    open_engine: Opener,
) -> None:
    fakes = fakes_with(frames=None, capabilities=replace(CAPABILITIES, max_positions=40))
    engine = open_engine(fakes)
    stream = engine.speak("Hello")
    frames = len(stream.read_all()) // FRAME_SAMPLES
    assert frames + len(fakes.loaded["fake"].prefills[0].embeds) == 40
    assert stream.finish_reason == "max_frames"
    with pytest.raises(InvalidRequestError, match="40 positions"):
        engine.speak("Hello there " * 20)


def test_a_request_error_of_the_backend_ends_that_stream_only(open_engine: Opener) -> None:
    def refuse(request: StreamRequest) -> None:
        if request.sampling.seed == 13:
            raise InvalidRequestError("not this one")

    engine = open_engine(fakes_with(on_prefill=refuse))
    streams = [engine.speak(TEXT, seed=seed) for seed in (12, 13, 14)]
    assert streams[0].read_all().size == streams[2].read_all().size == 30 * FRAME_SAMPLES
    with pytest.raises(InvalidRequestError, match="not this one"):
        streams[1].read_all()
    assert (streams[1].finish_reason, engine.metrics().errors, engine.metrics().faulty) == ("error", 1, {})


def test_a_request_error_while_decoding_a_batch_finds_its_stream(open_engine: Opener) -> None:
    fakes = Fakes()
    engine = open_engine(fakes)

    def refuse(call: int) -> None:
        if 2 in fakes.loaded["fake"].calls[call] and call > 5:
            raise InvalidRequestError("stream 2 is not welcome")

    fakes.talkers["fake"].on_decode = refuse
    with engine.borrow_backends():
        streams = [engine.speak(TEXT) for _ in range(3)]
    assert streams[0].read_all().size == streams[2].read_all().size == 30 * FRAME_SAMPLES
    with pytest.raises(InvalidRequestError, match="not welcome"):
        streams[1].read_all()


def test_a_backend_with_fewer_rows_than_promised_makes_streams_wait(
    open_engine: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    fakes = Fakes()
    engine = open_engine(fakes)

    def full(request: StreamRequest) -> None:
        if len(fakes.loaded["fake"].streams) >= 2:
            raise CapacityError("two rows only")

    fakes.talkers["fake"].on_prefill = full
    streams = [engine.speak(TEXT) for _ in range(5)]
    for stream in streams:
        assert stream.read_all().size == 30 * FRAME_SAMPLES
    assert "holds only 2 streams" in caplog.text


# ---- endings


def test_cancel_ends_the_iteration_and_frees_the_rows(open_engine: Opener) -> None:
    fakes = fakes_with(frames=None)
    engine = open_engine(fakes, max_frames=100_000, runaway_guard=False)
    stream, other = engine.speak(TEXT), engine.speak(TEXT, max_frames=2000)
    next(stream)
    stream.cancel()
    stream.cancel()
    assert list(stream) == []
    assert stream.finish_reason == "cancelled"
    assert other.read_all().size == 2000 * FRAME_SAMPLES
    with engine.borrow_backends():
        assert fakes.loaded["fake"].streams == {}
    assert (engine.metrics().cancelled, engine.metrics().active) == (1, 0)


def test_cancelled_rows_are_free_before_another_frame_of_the_others(open_engine: Opener) -> None:
    fakes = fakes_with(frames=20)
    engine = open_engine(fakes)
    victim: list[SpeechStream] = []

    def cancel(call: int) -> None:
        if call == 5:
            victim[0].cancel()

    fakes.talkers["fake"].on_decode = cancel
    with engine.borrow_backends():
        victim.append(engine.speak(TEXT))
        other = engine.speak(TEXT)
    other.read_all()
    calls = fakes.loaded["fake"].calls
    assert 1 in calls[5]
    assert all(1 not in call for call in calls[6:])


def test_a_dropped_stream_is_cancelled(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=100_000, runaway_guard=False, max_waiting=0, max_streams=1)
    stream = engine.speak(TEXT)
    next(stream)
    del stream
    gc.collect()
    with engine.borrow_backends() if wait_until(lambda: engine.metrics().cancelled == 1) else ExitStack():
        pass
    assert engine.metrics().cancelled == 1


def wait_until(condition: Callable[[], bool]) -> bool:
    waiting = threading.Event()
    for _ in range(int(HANG_S / 0.01)):
        if condition():
            return True
        waiting.wait(0.01)
    return False


def test_leaving_a_with_block_cancels(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=100_000, runaway_guard=False)
    with engine.speak(TEXT) as stream:
        next(stream)
    assert stream.finish_reason == "cancelled"


def test_the_runaway_guard_ends_a_loop_and_can_be_switched_off(
    open_engine: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    def loop(call: int, frames: list[Any]) -> object:
        return [replace(frame, codes=(1, *[2] * 15)) if frame.codes and call > 10 else frame for frame in frames]

    with caplog.at_level(logging.WARNING, "megatalker"):
        stream = open_engine(fakes_with(frames=400, spoil=loop)).speak(TEXT)
        frames = len(stream.read_all()) // FRAME_SAMPLES
    assert (stream.finish_reason, "runs away" in caplog.text) == ("runaway", True)
    assert 100 < frames < 130
    stream = open_engine(fakes_with(frames=400, spoil=loop), runaway_guard=False).speak(TEXT)
    assert (len(stream.read_all()) // FRAME_SAMPLES, stream.finish_reason) == (400, "eos")


def test_closing_ends_everything(open_engine: Opener) -> None:
    fakes = fakes_with(frames=None)
    engine = open_engine(fakes, max_frames=100_000, max_streams=1, runaway_guard=False)
    running, waiting, feeding = engine.speak(TEXT), engine.speak(TEXT), engine.speak(None)
    next(running)
    engine.close()
    engine.close()
    for stream in (running, waiting, feeding):
        with pytest.raises(EngineClosedError):
            stream.read_all()
    feeding.feed("too late")
    for use in (lambda: engine.speak(TEXT), engine.warmup, lambda: engine.borrow_backends().__enter__()):
        with pytest.raises(EngineClosedError):
            use()
    assert fakes.loaded["fake"].closed.is_set()
    assert fakes.loaded["noise"].closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("megatalker-worker")]


def test_fifty_streams_half_cancelled_leave_no_rows_and_no_trace(
    open_engine: Opener, tiny_custom_voice: Checkpoint
) -> None:
    chance = random.Random(1)
    fakes = fakes_with(frames=25)
    engine = open_engine(fakes, max_streams=6)
    expected = [plain_codes(tiny_custom_voice, TEXT, seed, "upfront", frames=25) for seed in range(50)]
    for _ in range(3):
        streams = [engine.speak(TEXT, seed=seed, return_codes=True) for seed in range(50)]
        victims = set(chance.sample(range(50), 25))
        for seed, stream in enumerate(streams):
            if seed in victims:
                for _ in range(chance.randrange(4)):
                    next(stream, None)
                stream.cancel()
            else:
                assert codes_of(stream) == expected[seed]
        with engine.borrow_backends():
            assert fakes.loaded["fake"].streams == {}
    metrics = engine.metrics()
    assert (metrics.streams, metrics.active, metrics.waiting, metrics.errors) == (150, 0, 0, 0)


# ---- asyncio


def test_async_iteration_from_two_event_loops_at_once(open_engine: Opener) -> None:
    engine = open_engine()

    async def listen(seed: int) -> int:
        return sum([chunk.frames async for chunk in engine.speak(TEXT, seed=seed)])

    async def several() -> list[int]:
        return await asyncio.gather(*(listen(seed) for seed in range(4)))

    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(several()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert results == [[30] * 4] * 2


def test_leaving_an_async_block_cancels(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=None), max_frames=100_000, runaway_guard=False)

    async def listen() -> tuple[SpeechStream, SpeechStream]:
        async with engine.speak(TEXT) as first:
            await anext(first)
        async with aclosing(engine.speak(TEXT)) as second:
            async for _ in second:
                break
        return first, second

    assert [stream.finish_reason for stream in asyncio.run(listen())] == ["cancelled", "cancelled"]


# ---- opening


def test_warmup_reaches_both_backends_and_metrics_name_them(open_engine: Opener) -> None:
    fakes = Fakes()
    engine = open_engine(fakes)
    engine.warmup()
    assert fakes.loaded["fake"].warmed == 1
    assert (engine.metrics().backend, engine.metrics().codec) == ("fake", "noise")


def test_backends_are_lent_between_streams_only(open_engine: Opener) -> None:
    engine = open_engine()
    stream = engine.speak(None)
    with pytest.raises(CapacityError, match="running"), engine.borrow_backends():
        pass
    stream.cancel()
    with engine.borrow_backends() as (talker, codec):
        assert isinstance(talker.decoder, FakeTalker)
        assert isinstance(codec.codec, FakeCodec)


def test_a_backend_asked_for_by_name_that_cannot_load_is_an_error(open_engine: Opener) -> None:
    def broken() -> None:
        raise RuntimeError("out of memory")

    fakes = Fakes(talkers={"broken": Behaviour(on_load=broken), "fake": Behaviour()})
    with pytest.raises(BackendUnavailableError, match=r"'broken' failed to load: RuntimeError: out of memory"):
        open_engine(fakes, backend="broken")
    engine = open_engine(fakes)
    assert engine.backend == "fake"
    assert "out of memory" in engine.metrics().faulty["talker broken"]
    with pytest.raises(BackendUnavailableError, match="out of memory"):
        open_engine(fakes, fallbacks=())


def test_wrong_backend_settings_are_named(open_engine: Opener) -> None:
    with pytest.raises(SettingsError, match=r"backends\.fake\.speed"):
        open_engine(backends={"fake": {"speed": 3}})
    with pytest.raises(SettingsError, match=r"codecs\.fake: no such backend"):
        open_engine(codecs={"fake": {}})


def test_single_settings_override_the_rest(tiny_custom_voice: Checkpoint) -> None:
    settings = Settings(max_streams=3, max_frames=7)
    with Engine.open(settings, checkpoint=tiny_custom_voice, registry=Fakes().registry, max_frames=9) as engine:
        assert (engine.settings.max_streams, engine.settings.max_frames) == (3, 9)


@pytest.mark.parametrize("named", [str, Path])
def test_a_checkpoint_may_be_named(tiny_custom_voice: Checkpoint, named: Callable[[Path], str | Path]) -> None:
    folder = tiny_custom_voice.folder
    with Engine.open(Settings(max_frames=7), checkpoint=named(folder), registry=Fakes().registry) as engine:
        assert engine.checkpoint.folder == folder
        assert (engine.settings.checkpoint, engine.settings.max_frames) == (str(folder), 7)
