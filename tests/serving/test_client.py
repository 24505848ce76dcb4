"""``RemoteEngine`` compared to ``Engine``: the same interface and samples, and clear errors when the network fails."""

import asyncio
import gc
import inspect
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from client_stage import Pair, rogue_server
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream
from megatalker.engine.speech.protocols import Speech, SpeechEngine
from megatalker.errors import (
    ConnectionFailedError,
)
from megatalker.sampling import SamplingParams
from megatalker.serving.client import RemoteEngine, RemoteStream
from megatalker.voices import Voice
from serving import ENDLESS, TEXT, endless, fakes_with, serving
from waiting import HANG_S, eventually


def codes_of(stream: Speech) -> np.ndarray:
    return np.concatenate([chunk.codes for chunk in stream if chunk.codes is not None])


# ---- the same as near


@pytest.mark.parametrize(
    "wishes",
    [
        {"seed": 5},
        {"sampling": SamplingParams(temperature=0.5, top_k=None, seed=8)},
        {"sampling": SamplingParams(seed=8), "seed": 2**64 - 1},
        {"voice": "serena", "language": "english", "layout": "interleaved", "seed": 1, "max_frames": 11},
        {"voice": Voice.named("serena"), "seed": 1},
    ],
)
def test_samples_and_codes_equal_those_made_here(connect: Pair, wishes: dict[str, Any]) -> None:
    served, remote = connect()
    far, near = (list(engine.speak(TEXT, return_codes=True, **wishes)) for engine in (remote, served.engine))
    for attribute in ("pcm", "codes"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(chunk, attribute) for chunk in far]),
            np.concatenate([getattr(chunk, attribute) for chunk in near]),
        )
    assert far[0].pcm.dtype == np.float32
    assert not any(chunk.final for chunk in far[:-1])
    assert [chunk.index for chunk in far] == list(range(len(far)))
    assert all(chunk.requested_at <= chunk.decoded_at <= chunk.delivered_at for chunk in far)


def test_the_last_chunk_and_pieces_are_those_made_here(connect: Pair) -> None:
    _, remote = connect()
    final = [chunk.final for chunk in remote.speak(TEXT, max_frames=9)]
    assert final == [False] * (len(final) - 1) + [True]
    assert [len(piece) for piece in remote.speak(TEXT, max_frames=9).pieces(0.04)] == [960] * 18


def test_a_cloned_voice_travels_along(tiny_base: Checkpoint) -> None:
    voice = Voice(x_vector=torch.randn(tiny_base.config.talker.hidden_size, generator=torch.Generator().manual_seed(1)))
    with serving(tiny_base) as served, RemoteEngine(served.url) as remote:
        far, near = (engine.speak(TEXT, voice=voice, seed=1).read_all() for engine in (remote, served.engine))
    np.testing.assert_array_equal(far, near)


def test_facts_and_seed_are_those_of_the_server(connect: Pair) -> None:
    _, remote = connect()
    stream = remote.speak(TEXT)
    chunks = list(stream)
    facts = stream.facts()
    assert (stream.finish_reason, stream.error, stream.backend) == ("eos", None, "fake")
    assert (facts.backend, facts.codec, facts.seed, facts.finish_reason) == ("fake", "noise", stream.seed, "eos")
    assert (facts.frames, facts.chunks, facts.segments) == (30, len(chunks), 1)
    assert facts.audio_s == pytest.approx(2.4)
    assert facts.ttfc_s == pytest.approx(chunks[0].delivered_at - chunks[0].requested_at)
    assert facts.rtf == pytest.approx((chunks[-1].decoded_at - chunks[0].requested_at) / 2.4)
    np.testing.assert_array_equal(
        remote.speak(TEXT, seed=stream.seed).read_all(), np.concatenate([c.pcm for c in chunks])
    )


def test_switches_of_backends_are_known(connect: Pair) -> None:
    def fail(call: int) -> None:
        if call == 5:
            raise RuntimeError("broken")

    _, remote = connect(Fakes(talkers={"first": Behaviour(on_decode=fail), "second": Behaviour()}))
    stream = remote.speak(TEXT)
    assert len(stream.read_all()) == 30 * 1920
    (switch,) = stream.switches
    assert (switch.kind, switch.origin, switch.target, switch.frame) == ("talker", "first", "second", 5)
    assert stream.backend == "second"


def test_the_first_chunk_is_here_before_the_second_frame_exists(connect: Pair) -> None:
    more = threading.Event()
    _, remote = connect(fakes_with(on_decode=lambda call: call == 0 or more.wait(HANG_S)))
    stream = remote.speak(TEXT)
    assert next(stream).frames == 1
    more.set()
    assert sum(chunk.frames for chunk in stream) == 29


def test_near_and_far_engines_have_one_face() -> None:
    for near, far in ((Engine.speak, RemoteEngine.speak), (SpeechStream.feed, RemoteStream.feed)):
        parameters = [list(inspect.signature(method).parameters.values()) for method in (near, far)]
        assert parameters[0] == parameters[1]
    for face, classes in ((Speech, (SpeechStream, RemoteStream)), (SpeechEngine, (Engine, RemoteEngine))):
        members = {name for name in vars(face) if not name.startswith("_") or name in ("__anext__", "__exit__")}
        for implementation in classes:
            assert members <= set(dir(implementation))


@pytest.mark.parametrize("where", ["near", "far"])
def test_an_agent_written_against_the_protocol_runs_with_both(connect: Pair, where: str) -> None:
    served, remote = connect()
    engine: SpeechEngine = remote if where == "far" else served.engine

    async def answer(words: list[str]) -> np.ndarray:
        async with engine.speak(None, seed=5) as speech:
            for word in words:
                speech.feed(word + " ")
            speech.finish()
            return np.concatenate([chunk.pcm async for chunk in speech])

    spoken = asyncio.run(answer(TEXT.split()))
    with served.engine.speak(None, seed=5) as stream:
        stream.feed(TEXT)
        stream.finish()
        np.testing.assert_array_equal(spoken, stream.read_all())


# ---- many at once


def test_16_utterances_over_4_rows_from_one_loop(connect: Pair) -> None:
    served, remote = connect(max_streams=4)

    async def one(number: int) -> np.ndarray:
        async with remote.speak(f"{TEXT} Number {number}.", seed=number) as speech:
            return np.concatenate([chunk.pcm async for chunk in speech])

    async def everyone() -> list[np.ndarray]:
        return await asyncio.gather(*(one(number) for number in range(16)))

    for number, spoken in enumerate(asyncio.run(everyone())):
        np.testing.assert_array_equal(spoken, served.engine.speak(f"{TEXT} Number {number}.", seed=number).read_all())


def test_threads_may_share_a_client(connect: Pair) -> None:
    served, remote = connect()
    spoken: dict[int, np.ndarray] = {}

    def one(number: int) -> None:
        with remote.speak(None, seed=number) as stream:
            for word in TEXT.split():
                stream.feed(word + " ")
            stream.finish()
            spoken[number] = stream.read_all()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    for number in range(8):
        with served.engine.speak(None, seed=number) as stream:
            stream.feed(TEXT)
            stream.finish()
            np.testing.assert_array_equal(spoken[number], stream.read_all())


# ---- cancel


def cancel(stream: RemoteStream) -> None:
    stream.cancel()


def leave(stream: RemoteStream) -> None:
    with stream:
        pass


def leave_async(stream: RemoteStream) -> None:
    async def enter() -> None:
        async with stream:
            pass

    asyncio.run(enter())


@pytest.mark.parametrize("end", [cancel, leave, leave_async])
def test_cancelling_frees_the_row(connect: Pair, end: Callable[[RemoteStream], None]) -> None:
    fakes = endless()
    served, remote = connect(fakes, **ENDLESS)
    stream = remote.speak(TEXT)
    next(stream)
    end(stream)
    assert stream.finish_reason == "cancelled"
    assert list(stream) == []
    eventually(lambda: served.rows_free(fakes), "its row is free")
    assert len(remote.speak("Hi.", max_frames=5).read_all()) == 5 * 1920, "the connection lives on"


def test_dropping_the_last_reference_frees_the_row(connect: Pair) -> None:
    fakes = endless()
    served, remote = connect(fakes, **ENDLESS)
    stream = remote.speak(TEXT)
    next(stream)
    del stream
    gc.collect()
    eventually(lambda: served.rows_free(fakes), "its row is free")


def test_dropping_the_client_ends_its_thread_and_frees_the_rows(connect: Pair) -> None:
    fakes = endless()
    served, _ = connect(fakes, **ENDLESS)
    remote = RemoteEngine(served.url)
    thread = remote._servers.first._thread
    stream = remote.speak(TEXT)
    next(stream)
    del remote
    assert next(stream).frames > 0, "a stream keeps its client alive"
    del stream
    gc.collect()
    eventually(lambda: served.rows_free(fakes), "its row is free")
    eventually(lambda: not thread.is_alive(), "its thread is gone")


def test_a_request_cancelled_before_it_was_sent_is_never_sent() -> None:
    heard: list[dict[str, Any]] = []
    shaken_hands = threading.Event()

    def listen(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                heard.append(json.loads(connection.recv(HANG_S)))

    def wait(connection: ServerConnection, request: object) -> None:
        shaken_hands.wait(HANG_S)

    with rogue_server(listen, process_request=wait) as url, RemoteEngine(url) as remote:
        streams = [remote.speak(text) for text in ("first", "second", "third")]
        streams[1].cancel()
        shaken_hands.set()
        eventually(lambda: len(heard) == 2, "the others are sent")
    assert [message["text"] for message in heard] == ["first", "third"]


# ---- within an event loop


def test_nothing_but_the_iteration_waits(connect: Pair) -> None:
    """Only the iteration waits, even for a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        async def agent() -> int:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.005)
                    ticks += 1

            remote = RemoteEngine(url, connect_timeout_s=1.0)
            streams = [remote.speak(None) for _ in range(20)]
            for stream in streams:
                stream.feed("Hello ")
                stream.finish()
            assert not any(stream.finish_reason for stream in streams), "the connection is still being tried"
            ticking = asyncio.create_task(tick())
            for stream in streams:
                with pytest.raises(ConnectionFailedError, match=r"cannot connect to ws://127.* no answer in time"):
                    await anext(stream)
            ticking.cancel()
            await asyncio.to_thread(remote.close)
            return ticks

        assert asyncio.run(agent()) > 10, "the loop never waited for the network"
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
