"""Threads for work that would keep the event loop waiting."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def named_pool(name: str) -> ThreadPoolExecutor:
    """A pool for one kind of work, so that another kind that comes in masses cannot delay it."""
    return ThreadPoolExecutor(thread_name_prefix=f"megatalker-{name}")


async def run_in(pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work``, called in a thread of ``pool`` with the context variables of the caller."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(work, *args, **kwargs))
