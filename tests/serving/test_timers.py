"""Timers that a pause of the whole process does not use up, and that are otherwise timers."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator

import pytest

from megatalker.serving import timers
from megatalker.serving.client.connection import ClientLoop
from megatalker.serving.server.process import ServerLoop
from megatalker.serving.timers import PIECE_S, WHOLE_S


@pytest.fixture(params=[ServerLoop, ClientLoop])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = request.param()
    yield loop
    loop.close()


def test_a_message_that_came_during_a_pause_is_read_before_its_deadline_is_over(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """A pause is a thread that stands still: the loop sees no more of it than that its time is gone."""

    async def answer(read: asyncio.StreamReader, written: asyncio.StreamWriter) -> None:
        said = await read.readline()
        await asyncio.sleep(0.1)
        written.write(said)
        written.close()

    async def main() -> bytes:
        asyncio.get_running_loop().call_later(0.01, time.sleep, 4 * WHOLE_S)
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            read, written = await asyncio.open_connection(*server.sockets[0].getsockname())
            async with asyncio.timeout(2 * WHOLE_S):
                written.write(b"word\n")
                said = await read.readline()
            written.close()
            return said

    assert loop.run_until_complete(main()) == b"word\n"


@pytest.mark.parametrize("delay", [0.01, WHOLE_S + PIECE_S / 5])
def test_a_timer_calls_once_after_its_time_in_its_context(loop: asyncio.AbstractEventLoop, delay: float) -> None:
    word, heard = contextvars.ContextVar("word", default="none"), []

    async def main() -> float:
        context, began = contextvars.copy_context(), time.monotonic()
        context.run(word.set, "given")
        done = asyncio.Event()
        loop.call_later(delay, lambda: (heard.append(word.get()), done.set()), context=context)
        await done.wait()
        return time.monotonic() - began

    assert loop.run_until_complete(main()) >= delay - 0.01
    assert heard == ["given"]


@pytest.mark.parametrize(
    "arm", [lambda loop, call: loop.call_later(2.0, call), lambda loop, call: loop.call_at(loop.time() + 2.0, call)]
)
def test_a_timer_can_be_cancelled_between_its_pieces(
    loop: asyncio.AbstractEventLoop,
    arm: Callable[..., asyncio.TimerHandle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "PIECE_S", 0.05)
    called: list[bool] = []

    async def main() -> asyncio.TimerHandle:
        timer = arm(loop, lambda: called.append(True))
        assert abs(timer.when() - loop.time() - 2.0) < 0.5
        await asyncio.sleep(0.12)
        timer.cancel()
        await asyncio.sleep(0.12)
        return timer

    assert loop.run_until_complete(main()).cancelled()
    assert called == []
