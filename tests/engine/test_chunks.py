"""Chunks: the mark of the last one, lines of the log, and pieces shorter than a frame."""

import asyncio
import logging
import re
import threading

import numpy as np
import pytest

from engine_stage import TEXT, Opener, fakes_with
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine import Chunk
from megatalker.errors import BackendFaultError, InvalidRequestError
from waiting import HANG_S, eventually


def test_a_stream_that_reaches_its_length_ends_with_a_final_chunk(open_engine: Opener) -> None:
    final = [chunk.final for chunk in open_engine(fakes_with(frames=None)).speak(TEXT, max_frames=9)]
    assert final == [False] * (len(final) - 1) + [True]


def test_who_takes_the_chunks_late_is_told_which_is_the_last(open_engine: Opener) -> None:
    stream = open_engine(fakes_with(frames=5), max_chunk_frames=1).speak(TEXT)
    eventually(lambda: stream.finish_reason, "the stream has ended")
    assert [chunk.final for chunk in stream] == [False] * 4 + [True]


def test_no_chunk_is_held_back_to_find_out_whether_it_is_the_last(open_engine: Opener) -> None:
    frames, taken = 4, threading.Event()

    def until_all_frames_were_heard(call: int) -> None:
        if call == frames:  # this call finds the end of speech
            assert taken.wait(HANG_S), "the last chunk waits for the end"

    engine = open_engine(fakes_with(frames=frames, on_decode=until_all_frames_were_heard), max_chunk_frames=1)
    stream = engine.speak(TEXT)
    chunks = [next(stream) for _ in range(frames)]
    assert [chunk.final for chunk in chunks] == [False] * frames
    taken.set()
    assert list(stream) == [], "the end of the iteration is the end"
    assert stream.finish_reason == "eos"


@pytest.mark.parametrize("largest", [1, 25])
def test_speech_that_failed_has_no_final_chunk(open_engine: Opener, largest: int) -> None:
    def fail(call: int) -> None:
        if call >= 5:
            raise RuntimeError("broken")

    stream = open_engine(fakes_with(frames=None, on_decode=fail), max_chunk_frames=largest).speak(TEXT)
    eventually(lambda: stream.finish_reason, "the stream has ended")
    chunks = list[Chunk]()
    with pytest.raises(BackendFaultError):
        chunks.extend(stream)
    assert sum(chunk.frames for chunk in chunks) >= 5
    assert not any(chunk.final for chunk in chunks)


def test_the_log_tells_of_each_chunk_and_how_long_after_the_one_before(
    open_engine: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_engine(fakes_with(frames=None))
    with caplog.at_level(logging.DEBUG, "megatalker.engine.handing_out"):
        chunks = list(engine.speak(TEXT, seed=7, max_frames=9))
    lines = [record.message for record in caplog.records if "chunk" in record.message]
    assert len(lines) == len(chunks)
    assert re.match(
        r"stream with seed 7: chunk 0 of 1 frames at 0\.00 s of speech, \d+\.\d ms after the request", lines[0]
    )
    for line, before, chunk in zip(lines[1:], chunks, chunks[1:], strict=False):
        delta = 1e3 * (chunk.decoded_at - before.decoded_at)
        assert f"chunk {chunk.index} of {chunk.frames} frames" in line
        assert f"{delta:.1f} ms after the chunk before" in line
    assert [line.endswith(", final") for line in lines] == [chunk.final for chunk in chunks]


# ---- pieces


@pytest.mark.parametrize("seconds", [0.04, 0.01, 0.08])
def test_pieces_are_the_speech_cut_evenly(open_engine: Opener, seconds: float) -> None:
    engine = open_engine(fakes_with(frames=12))
    whole = engine.speak(TEXT, seed=1).read_all()
    pieces = list(engine.speak(TEXT, seed=1).pieces(seconds))
    assert {len(piece) for piece in pieces} == {round(seconds * 24000)}
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_pieces_for_event_loops(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=3))

    async def read() -> list[int]:
        return [len(piece) async for piece in engine.speak(TEXT).pieces(0.04)]

    assert asyncio.run(read()) == [FRAME_SAMPLES // 2] * 6


@pytest.mark.parametrize("seconds", [0.03, 0.16, 0.0, -0.04, 1e-9])
def test_pieces_that_would_have_to_wait_are_refused(open_engine: Opener, seconds: float) -> None:
    with open_engine().speak(TEXT) as stream, pytest.raises(InvalidRequestError, match=r"divides a frame of 0\.08 s"):
        stream.pieces(seconds)
