"""A front end gives each owner one thread for long messages and texts at a time, and one turn of its event loop."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import httpx
import pytest

from megatalker.serving.server.callers import Caller, RequestContext, Turns, enter_request
from megatalker.serving.server.checks import Checks
from serving import Served
from waiting import HANG_S


def test_threads_do_one_piece_of_work_of_each_owner_at_a_time() -> None:
    """Many that compute in Python keep the event loop waiting for its lock, however many an owner asks for."""
    checks, running, most = Checks(), Counter[str](), Counter[str]()
    told = threading.Event()

    def work(owner: str) -> str:
        running[owner] += 1
        most[owner] = max(most[owner], running[owner])
        if owner == "greedy":
            told.wait(HANG_S)
        running[owner] -= 1
        return owner

    async def ask(owner: str) -> str:
        enter_request(RequestContext(Caller(owner)))
        return await checks.run(partial(work, owner))

    async def use() -> list[str]:
        greedy = [asyncio.create_task(ask("greedy")) for _ in range(40)]
        await asyncio.sleep(0)
        greedy[0].cancel()  # whoever asked is gone, and the thread still works
        asked = [await ask("other") for _ in range(3)]
        told.set()
        return asked + await asyncio.gather(*greedy[1:])

    assert asyncio.run(asyncio.wait_for(use(), HANG_S)) == ["other"] * 3 + ["greedy"] * 39
    assert most == {"greedy": 1, "other": 1}
    checks.close()


def test_what_fails_in_a_thread_is_told_and_the_next_goes_on() -> None:
    checks = Checks()

    async def use() -> list[object]:
        return await asyncio.gather(*(checks.run(lambda by=by: 1 / by) for by in (0, 1, 0, 2)), return_exceptions=True)

    first, second, third, last = asyncio.run(asyncio.wait_for(use(), HANG_S))
    assert isinstance(first, ZeroDivisionError)
    assert isinstance(third, ZeroDivisionError)
    assert (second, last) == (1.0, 0.5)
    checks.close()


PATHS = ("/live", "/ready", "/metrics", "/v1/models", "/v1/models/tiny", "/v1/voices", "/v1/audio/voices", "/", "/docs")


def test_no_route_takes_a_thread_for_each_request(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A front end would have 40 of them, however few callers there are."""
    taken: list[object] = []

    async def run_in_threadpool(work: Callable[..., object], *arguments: object, **options: object) -> object:
        taken.append(work)
        return work(*arguments, **options)

    monkeypatch.setattr("fastapi.routing.run_in_threadpool", run_in_threadpool)
    for path in PATHS:
        assert httpx.get(shared.url + path, timeout=HANG_S).status_code in (200, 404)
    assert not taken


def test_an_owner_has_one_turn_of_the_event_loop_at_a_time() -> None:
    turns, order = Turns(), list[str]()

    async def handle(owner: str) -> None:
        await turns.take(owner)
        order.append(owner)

    async def use() -> None:
        greedy = [asyncio.create_task(handle("greedy")) for _ in range(100)]
        await asyncio.sleep(0)
        for task in greedy[10:20]:
            task.cancel()
        await asyncio.gather(*(handle("other") for _ in range(3)))
        assert order.count("greedy") <= 8, "others have their turns meanwhile"
        await asyncio.gather(*greedy, return_exceptions=True)
        assert order.count("greedy") == 90
        await handle("greedy")  # nothing is left behind

    asyncio.run(asyncio.wait_for(use(), HANG_S))
    assert order.count("other") == 3
