"""Engines in places where they cannot work: forked children, and plain loops inside an event loop."""

import asyncio
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from fake_backend import Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream
from megatalker.errors import UnsupportedError
from megatalker.settings import Settings
from waiting import HANG_S

TEXT = "Hello there, this is a sentence of a few words."


@pytest.fixture
def engine(tiny_custom_voice: Checkpoint) -> Iterator[Engine]:
    with Engine.open(Settings(), checkpoint=tiny_custom_voice, registry=Fakes().registry) as engine:
        yield engine


def _in_child(engine: Engine, stream: SpeechStream, answers: "Connection[str, None]") -> None:
    for call in (lambda: engine.speak(TEXT), engine.warmup, lambda: next(stream), lambda: stream.feed("more")):
        try:
            call()
        except UnsupportedError as error:
            answers.send(str(error))
        else:
            answers.send("no error")
    stream.cancel()
    engine.close()
    answers.send("closed")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_gets_an_error_instead_of_hanging(engine: Engine) -> None:
    context = multiprocessing.get_context("fork")
    answers, told = context.Pipe(duplex=False)
    stream = engine.speak(None)
    stream.feed("Hello there, ")
    child = context.Process(target=_in_child, args=(engine, stream, told))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tried here
        child.start()
    try:
        for _ in range(4):
            assert answers.poll(HANG_S), "the child hangs"
            answer = answers.recv()
            assert f"belongs to process {os.getpid()}" in answer
            assert f"forked child {child.pid}" in answer
            assert "spawn" in answer
        assert answers.poll(HANG_S), "the child hangs"
        assert answers.recv() == "closed"
    finally:
        child.kill()
        child.join()
    stream.finish()
    assert len(stream.read_all()), "the parent goes on"


def test_a_plain_loop_inside_an_event_loop_warns_once(engine: Engine) -> None:
    async def listen() -> int:
        with pytest.warns(RuntimeWarning, match="blocks the event loop") as caught:
            count = sum(1 for _ in engine.speak(TEXT))
        assert len(caught) == 1
        return count

    assert asyncio.run(listen()) > 1


def test_an_async_loop_and_a_plain_loop_in_another_thread_do_not_warn(engine: Engine) -> None:
    async def listen() -> tuple[int, int]:
        chunks = [chunk async for chunk in engine.speak(TEXT)]
        return len(chunks), len(await asyncio.to_thread(engine.speak(TEXT).read_all))

    assert min(asyncio.run(listen())) > 1
