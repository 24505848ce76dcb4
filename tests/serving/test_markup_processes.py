"""Markup in the texts of engine processes, also where one dies in the middle of a pause."""

import os
import signal
from typing import Any

import numpy as np
import pytest

import process_backends
from marked_speech import codes, samples
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Chunk, Engine
from megatalker.engine.speech.joints import EDGE_SAMPLES
from megatalker.serving.processes import ProcessEngine
from megatalker.settings import Settings

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"short_speech": "believe", "max_segment_frames": 6, "max_chunk_frames": 2}


def heard_alone(checkpoint: Checkpoint, text: str, wishes: dict[str, Any]) -> list[Chunk]:
    """Return what an engine in this process says."""
    settings = Settings.model_validate(SETTINGS)
    with Engine.open(settings, checkpoint=checkpoint, registry=process_backends.paced()) as engine:
        return list(engine.speak(text, **wishes))


def two_processes(checkpoint: Checkpoint) -> ProcessEngine:
    """Open an engine of two processes, to be closed."""
    settings = Settings.model_validate(SETTINGS | {"device": "cpu"})
    return ProcessEngine.open(settings, checkpoint=checkpoint, devices=["cpu", "cpu"], registry=process_backends.paced)


def test_an_engine_that_dies_between_pauses_marks_and_voices_is_not_heard(tiny_custom_voice: Checkpoint) -> None:
    speaker = list(tiny_custom_voice.config.speakers)[1]
    text = f"[pause:70ms]One.[pause:300ms][mark:a]Two.[voice:{speaker}]Three.[mark:b][/voice]Four.[pause:1s][mark:c]"
    wishes: dict[str, Any] = {"markup": "tags", "seed": 3, "return_codes": True, "layout": "interleaved"}
    right = heard_alone(tiny_custom_voice, text, wishes)
    with two_processes(tiny_custom_voice) as engine:
        for fed in (False, True):
            for taken in (1, 4, 7):
                stream = engine.speak(None if fed else text, **wishes)
                if fed:
                    stream.feed(text[:50])
                    stream.feed(text[50:])
                    stream.finish()
                chunks = [next(stream) for _ in range(taken)]
                handle = stream._link.handle  # type: ignore[attr-defined]
                if handle is not None and stream.finish_reason is None:
                    os.kill(handle.pid, signal.SIGKILL)
                require_same([*chunks, *stream], right)


def test_an_engine_that_dies_within_a_slow_part_is_not_heard(tiny_custom_voice: Checkpoint) -> None:
    text = (
        "One.<prosody rate='70%'>Two.<break time='70ms'/>Three.<prosody rate='2' volume='soft'>Four.</prosody>Five."
        "</prosody><mark name='a'/>Six."
    )
    wishes: dict[str, Any] = {"markup": "ssml", "seed": 3, "return_codes": True, "layout": "interleaved"}
    right = heard_alone(tiny_custom_voice, text, wishes)
    with two_processes(tiny_custom_voice) as engine:
        for made in (1, 8, 15, 20, 26):  # frames: within each part
            stream, chunks = engine.speak(text, **wishes), list[Chunk]()
            while stream.facts().frames < made:
                chunks.append(next(stream))
            handle = stream._link.handle  # type: ignore[attr-defined]
            if handle is not None and stream.finish_reason is None:
                os.kill(handle.pid, signal.SIGKILL)
            require_same([*chunks, *stream], right)


def require_same(chunks: list[Chunk], right: list[Chunk]) -> None:
    assert codes(chunks) == codes(right)
    assert [mark for chunk in chunks for mark in chunk.marks] == [mark for chunk in right for mark in chunk.marks]
    at = 0
    for chunk in chunks:
        assert chunk.sample_offset == at
        at += len(chunk.pcm)
    heard, expected = samples(chunks), samples(right)
    assert len(heard) == len(expected)
    differs = np.flatnonzero(heard != expected)
    assert len(differs) <= EDGE_SAMPLES, "the last sample before a pause is unknown to the engine that goes on"
