"""``megatalker load --http``: what its listeners make of a server's responses."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from pydantic import SecretStr

from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench import load_run
from megatalker.cli.bench.drive import Script
from megatalker.cli.bench.servers import PATH, SpeechRoute
from megatalker.cli.bench.traffic import Traffic
from megatalker.engine.speech.options import SpeechOptions
from megatalker.errors import (
    CapacityError,
    ConnectionFailedError,
    InvalidRequestError,
    MegatalkerError,
    UnsupportedError,
)
from megatalker.settings import Settings
from serving import endless, fakes_with, serving
from waiting import eventually

Parts = list[np.ndarray]
OPTIONS = SpeechOptions(seed=7, max_frames=5, voice="vivian")
BUSY = b'{"error": {"type": "CapacityError", "message": "full"}}'


async def hear(route: SpeechRoute, text: str = "Hello.", options: SpeechOptions = OPTIONS) -> Parts:
    return [pcm async for pcm in route.listen(text, options, None)]


@asynccontextmanager
async def answering(*parts: bytes) -> AsyncIterator[tuple[SpeechRoute, list[bytes]]]:
    """A route to a server that answers every request with these bytes in turn, and the requests that it got."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for place, part in enumerate(parts):
            await asyncio.sleep(0.02 if place else 0.0)
            writer.write(part)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield SpeechRoute([f"http://127.0.0.1:{port}/"], SecretStr("key")), asked


def response(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_speech_is_that_of_the_engine(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes_with(frames=None)) as served:
        parts = asyncio.run(hear(SpeechRoute([served.url], None)))
        alone = served.engine.speak("Hello.", OPTIONS).read_all()
    heard = np.concatenate(parts)
    assert heard.dtype == np.float32
    assert heard == pytest.approx(alone, abs=1 / 32767)


def test_a_sample_may_arrive_in_two_parts() -> None:
    async def listen() -> tuple[Parts, list[bytes]]:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"
        async with answering(head + b"\x00\x00\xff", b"\x7f\x01", b"\x80\x05") as (route, asked):
            return await hear(route), asked

    parts, asked = asyncio.run(listen())
    assert np.concatenate(parts).tolist() == [0.0, 1.0, -1.0]
    assert asked[0].startswith(f"POST {PATH} HTTP/1.1".encode())
    assert b"Authorization: Bearer key" in asked[0]


@pytest.mark.parametrize(
    ("parts", "kind", "message"),
    [
        ([response("429 Too Many Requests", BUSY)], CapacityError, "full"),
        ([response("502 Bad Gateway", b"<html>")], MegatalkerError, "HTTP 502: '<html>', expected speech"),
        ([response("500 Oops", b'{"error": "no"}')], MegatalkerError, "HTTP 500"),
        ([response("200 OK", b"1234")[:-2]], ConnectionFailedError, "ClientPayloadError"),
        ([], ConnectionFailedError, "ServerDisconnectedError"),
    ],
)
def test_a_response_without_speech_is_an_error(parts: list[bytes], kind: type[Exception], message: str) -> None:
    async def listen() -> None:
        async with answering(*parts) as (route, _):
            await hear(route)

    with pytest.raises(kind, match=message):
        asyncio.run(listen())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nothing", "ftp://somewhere"])
def test_an_unreachable_server_is_reported_before_any_load(url: str) -> None:
    wanted = load_run.Measurement([Traffic("burst", 1)], Script(), 1.0, None, [url], http=True)
    with pytest.raises(ConnectionFailedError, match=url):
        load_run.measure(wanted, Settings(), lambda _: None)


def test_a_refused_request_has_the_name_that_the_server_gives_it(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes_with(frames=None)) as served, pytest.raises(InvalidRequestError, match="nob"):
        asyncio.run(hear(SpeechRoute([served.url], None), options=SpeechOptions(voice="nobody")))


@pytest.mark.slow
def test_a_load_is_measured_and_leaves_no_request_behind(tiny_custom_voice: Checkpoint) -> None:
    loads = [Traffic("burst", 3), Traffic("streams", 2)]
    with serving(tiny_custom_voice, endless(), max_frames=10**8, max_segment_frames=10**8) as served:
        wanted = load_run.Measurement(loads, Script(length_s=0.4, ahead_s=1.0), 1.5, None, [served.url], http=True)
        report = load_run.measure(wanted, Settings(), lambda _: None)
        eventually(lambda: not (seen := served.engine.metrics()).active + seen.waiting, "nobody is left")
    burst, streams = report.cases
    assert (burst.heard, burst.errors) == (3, {})
    assert burst.speech_s_per_s == pytest.approx(0.8, rel=0.2), "0.4 s for each of three, in 1.5 seconds"
    assert (streams.heard, streams.errors) == (2, {})


def test_without_aiohttp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UnsupportedError, match=r"megatalker\[bench\]"):
        SpeechRoute(["a"], None)


def test_a_response_that_breaks_off_is_an_error_unless_the_speech_is_endless(tiny_custom_voice: Checkpoint) -> None:
    with serving(tiny_custom_voice, fakes_with(frames=None), max_segment_frames=10) as served:
        route = SpeechRoute([served.url], None)
        with pytest.raises(ConnectionFailedError):
            asyncio.run(hear(route, options=SpeechOptions(seed=7)))
        endless = Script().options(7, endless=True)
        assert sum(map(len, asyncio.run(hear(SpeechRoute([served.url], None), options=endless)))) == 10 * 1920
