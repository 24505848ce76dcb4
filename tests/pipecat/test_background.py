"""Tasks and threads of the agent and of the service that fail: what depends on them goes on or ends, and says why."""

import asyncio
import io
import types
from typing import Any

import pytest

from megatalker_pipecat.agent import terminal
from megatalker_pipecat.delivery import DeliveringTTSService
from waiting import HANG_S


class Broken(io.RawIOBase):
    def isatty(self) -> bool:
        return False

    def __next__(self) -> bytes:
        raise OSError(5, "Input/output error")


@pytest.mark.asyncio
async def test_standard_input_that_breaks_ends_the_conversation_with_a_failure() -> None:
    queued: list[Any] = []

    async def queue_frame(frame: Any) -> None:
        queued.append(frame)

    failures: list[str] = []
    worker: Any = types.SimpleNamespace(queue_frame=queue_frame)
    async with asyncio.timeout(HANG_S):
        await terminal._pass_on(worker, Broken(), failures)
    assert [type(frame).__name__ for frame in queued] == ["EndFrame"]
    assert "Input/output error" in failures[0]


@pytest.mark.asyncio
async def test_work_after_speech_runs_even_if_the_speech_failed() -> None:
    done: list[str] = []

    async def fail() -> None:
        raise RuntimeError("a delivery that broke")

    async def work() -> None:
        done.append("the engine was given back")

    kept: list[asyncio.Task[None]] = []
    delivery: Any = types.SimpleNamespace(_deliveries={asyncio.ensure_future(fail())})
    delivery._keep = lambda coroutine, _name: kept.append(asyncio.ensure_future(coroutine))
    DeliveringTTSService._run_after_deliveries(delivery, work())
    await kept[0]
    assert done == ["the engine was given back"]
