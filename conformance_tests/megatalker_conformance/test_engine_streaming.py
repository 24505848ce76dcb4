"""Streaming through the engine, judged by structure: the calls that had run before a chunk came out."""

import pytest
import torch

from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge
from megatalker_conformance.codes import EXACT, OfficialCodec
from megatalker_conformance.engine_harness import FRAMES, EngineHarness
from megatalker_conformance.measure import Measure, waits_of_a_thread
from megatalker_conformance.recording import Log

RUNS = 12
THREADS = 3
"""Threads that a frame goes through one after another: each may have to wait for a processor."""


def test_chunks_are_whole_frames_without_gaps_and_the_codes_are_right(
    engine_harness: EngineHarness, cases: Cases, judge: Judge, official_codec: OfficialCodec, measure: Measure
) -> None:
    log = Log()
    with engine_harness.engine(log) as engine:
        received = engine_harness.listen(engine_harness.begin(engine, SENTENCES[0], judge.manner, "upfront"), log)
    judge(cases.prompt(SENTENCES[0], "upfront", judge.manner), received.codes, FRAMES)
    offset = 0
    for index, chunk in enumerate(received.chunks):
        assert (chunk.index, chunk.sample_offset) == (index, offset)
        assert len(chunk.pcm) == chunk.frames * FRAME_SAMPLES
        offset += len(chunk.pcm)
    assert offset == len(received.codes) * FRAME_SAMPLES
    expected = official_codec.decode(torch.tensor(received.codes))
    measure("largest difference", float((torch.from_numpy(received.pcm) - expected).abs().max()), EXACT)


def test_no_chunk_waits_for_a_later_one(engine_harness: EngineHarness, judge: Judge) -> None:
    """The consumer holds the first chunk after one frame and one codec call, and each one before the next is made."""
    log = Log(gated=True)
    with engine_harness.engine(log) as engine:
        received = engine_harness.listen(engine_harness.begin(engine, SENTENCES[0], judge.manner, "interleaved"), log)
    assert not log.kept_back
    assert received.chunks[0].frames == 1
    assert len(received.chunks) == log.codec_calls, "one codec call makes one chunk"


def test_playback_never_runs_dry(engine_harness: EngineHarness, judge: Judge) -> None:
    """The test succeeds if one run does in which every frame took the backends at most 80 % of its duration.

    In others a busy machine may keep the engine's threads waiting, as it does a thread of the test's own. A run counts
    only if its silence lasted longer than that thread waited.
    """
    slowest: list[float] = []
    silences: list[str] = []
    for _ in range(RUNS):
        log = Log()
        with engine_harness.engine(log) as engine, waits_of_a_thread() as waits:
            received = engine_harness.listen(engine_harness.begin(engine, SENTENCES[0], judge.manner, "upfront"), log)
        slowest.append(log.slowest_decode_s + log.slowest_codec_s)
        silence, waited = received.silence_s, THREADS * sum(waits)
        if slowest[-1] < 0.8 * FRAME_SECONDS:
            if not silence:
                return
            if silence > waited:
                silences.append(f"{silence * 1000:.0f} ms, of which {waited * 1000:.0f} ms may be the machine's")
    if len(silences) < RUNS / 4:
        pytest.skip(f"too slow or too busy a machine: a frame took {min(slowest) * 1000:.0f} ms and lasts 80")
    raise AssertionError(f"playback ran dry in {len(silences)} runs of {RUNS}: {'; '.join(silences)}")


def test_text_fed_word_by_word_gives_the_codes_of_text_given_at_once(
    engine_harness: EngineHarness, cases: Cases, judge: Judge
) -> None:
    log = Log()
    with engine_harness.engine(log) as engine:
        stream = engine_harness.begin(engine, None, judge.manner, "interleaved")
        for word in SENTENCES[0].split(" "):
            stream.feed(word if word == SENTENCES[0].split(" ")[0] else f" {word}")
        stream.finish()
        received = engine_harness.listen(stream, log)
    judge(cases.prompt(SENTENCES[0], "interleaved", judge.manner), received.codes, FRAMES)


def test_cancel_stops_the_backend_and_frees_its_rows(engine_harness: EngineHarness, cases: Cases, judge: Judge) -> None:
    log = Log(gated=True)
    with engine_harness.engine(log) as engine:
        cancelled = engine_harness.begin(engine, SENTENCES[0], judge.manner, "interleaved")
        next(cancelled)
        cancelled.cancel()
        at_cancel = log.frames
        log.gated = False
        log.taken()
        received = engine_harness.listen(engine_harness.begin(engine, SENTENCES[1], judge.manner, "interleaved"), log)
        judge(cases.prompt(SENTENCES[1], "interleaved", judge.manner), received.codes, FRAMES)
        wasted = log.frames - at_cancel - len(received.codes)
        assert wasted <= 1, f"{wasted} frames were decoded for nobody"
    assert sorted(log.opened) == sorted(log.released)


def test_streams_side_by_side_say_what_they_say_alone(
    engine_harness: EngineHarness, cases: Cases, judge: Judge
) -> None:
    log = Log()
    with engine_harness.engine(log) as engine:
        streams = [engine_harness.begin(engine, text, judge.manner, "interleaved") for text in SENTENCES[:3]]
        received = [engine_harness.listen(stream, log) for stream in streams]
    for text, speech in zip(SENTENCES[:3], received, strict=True):
        judge(cases.prompt(text, "interleaved", judge.manner), speech.codes, FRAMES)
    assert sorted(log.opened) == sorted(log.released)
