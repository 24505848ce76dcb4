"""Threads for long messages and texts: each owner has one, and what it raises is told."""

import asyncio
import threading
from collections import Counter
from functools import partial

from megatalker.serving.server.callers import Caller, RequestContext, enter_request
from megatalker.serving.server.checks import Checks
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
