"""Background work: tasks and threads whose failures are logged, reported to whatever depends on them, and counted.

Tasks and threads begin here and nowhere else, except where their result is awaited by the code that began them.
"""

import asyncio
import contextvars
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

OnFailure = Callable[[BaseException], object]

POLL_PERIOD_S = 1.0
"""Time between two looks at something that is polled."""
POLL_SHARE = 0.02
"""A look that takes long is followed by a longer pause, so that looks take at most this share of the time."""
LONGEST_PAUSE_S = 30.0
"""Longest pause between two looks: after each failure the pause grows up to this."""
BUSY_SHARE = 0.5
"""An event loop that computes for more of its time is busy."""
BUSY_PERIOD_S, IDLE_PERIOD_S = 0.005, 0.05
"""Time between two naps of a busy event loop, which take 3 % of it, and between two looks at one that is not busy."""
NAP_S = 0.00005
"""About as long as a thread takes to wake."""


class BackgroundHealth:
    """Failures of background work, by the name of the work. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[str, bool, bool], None] = lambda _name, _failed, _troubled: None,
    ) -> None:
        """``on_change`` is told of each :meth:`failed` and :meth:`well`: the name, whether it failed, whether it is in
        trouble.
        """
        self._clock, self._lock, self._on_change = clock, threading.Lock(), on_change
        self._failures: Counter[str] = Counter()
        self._troubles: dict[str, tuple[float, str]] = {}

    def failed(self, name: str, why: str | None = None) -> None:
        """Count a failure. With ``why``, for everybody to read, the work is in trouble until :meth:`well`."""
        with self._lock:
            self._failures[name] += 1
            if why is not None:
                since, _ = self._troubles.get(name, (self._clock(), ""))
                self._troubles[name] = since, why
            self._on_change(name, True, name in self._troubles)

    def well(self, name: str) -> bool:
        """Note that the work goes on as it should; returns whether it failed before."""
        with self._lock:
            self._failures.setdefault(name, 0)
            self._on_change(name, False, False)
            return self._troubles.pop(name, None) is not None

    def troubles(self, for_s: float = 0.0) -> dict[str, str]:
        """Return what has been wrong for at least this many seconds, by name."""
        now = self._clock()
        with self._lock:
            return {name: why for name, (since, why) in self._troubles.items() if now - since >= for_s}

    def failures(self) -> dict[str, int]:
        """Failures so far, by name; 0 for work that has never failed."""
        with self._lock:
            return dict(self._failures)


def count_lost_exceptions(loop: asyncio.AbstractEventLoop, health: BackgroundHealth) -> None:
    """Count what the event loop itself logs: exceptions of callbacks and timers, and of tasks that nobody awaits."""
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        health.failed("event loop")
        loop.default_exception_handler(context) if before is None else before(loop, context)

    loop.set_exception_handler(handle)


def start_task(work: Coroutine[Any, Any, None], name: str, on_failure: OnFailure | None = None) -> asyncio.Task[None]:
    """Begin a task of the running event loop. Keep the reference: the loop keeps none.

    Args:
        work: what it does.
        name: for logs.
        on_failure: called with its exception, in the event loop, after that was logged. A cancelled task did not fail.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(lambda done: None if done.cancelled() else report(name, done.exception(), on_failure))
    return task


def start_thread(work: Callable[[], object], name: str, on_failure: OnFailure | None = None) -> threading.Thread:
    """Begin a daemon thread; ``on_failure`` is called in it with its exception, after that was logged."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            report(name, error, on_failure)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class RecoverableError(Exception):
    """Something outside is not as it should be, and may be mended at any time.

    Args:
        why: for everybody to read, without paths.
        details: for the log.
    """

    def __init__(self, why: str, details: object) -> None:
        super().__init__(f"{why}: {details}")
        self.why = why


@asynccontextmanager
async def polling(look: Callable[[], Awaitable[None]], name: str, health: BackgroundHealth) -> AsyncIterator[None]:
    """Await ``look`` once a second within the block. Failures are logged when they change, and it is tried again."""
    task = start_task(_poll_again(look, name, health), name, lambda _error: health.failed(name, "it has stopped"))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _poll_again(look: Callable[[], Awaitable[None]], name: str, health: BackgroundHealth) -> None:
    told, pause_s = "", POLL_PERIOD_S
    while True:
        began = time.monotonic()
        try:
            await look()
        except Exception as error:
            expected = isinstance(error, RecoverableError)
            health.failed(
                name, error.why if isinstance(error, RecoverableError) else f"it fails ({type(error).__name__})"
            )
            if told != (told := repr(error)):
                logger.error("%s: %s; trying again", name, error, exc_info=not expected)
            pause_s = POLL_PERIOD_S if expected else min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            told, pause_s = "", POLL_PERIOD_S
            if health.well(name):
                logger.warning("%s: all is well again", name)
        await asyncio.sleep(max(pause_s, (time.monotonic() - began) / POLL_SHARE))


def report(name: str, error: BaseException | None, on_failure: OnFailure | None) -> None:
    """Log how work ended, if it failed, and tell ``on_failure``."""
    if error is None:
        return
    logger.error("%s failed", name, exc_info=error)
    if on_failure is not None:
        on_failure(error)


@asynccontextmanager
async def giving_way() -> AsyncIterator[None]:
    """Within the block, other threads get Python's lock soon though the running event loop always has something to do.

    Such a loop gives the lock up in each of its turns, and has it back before another thread has woken: beside one on a
    quiet machine, work of 5 ms took a thread 0.1 to 0.4 s, now and then seconds. It wakes while the loop sleeps.
    """
    task = start_task(_give_way(), "giving way")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _give_way() -> None:
    period_s = IDLE_PERIOD_S
    while True:
        computed_s, began = time.thread_time(), time.monotonic()
        await asyncio.sleep(period_s)
        busy = time.thread_time() - computed_s > BUSY_SHARE * (time.monotonic() - began)
        if busy:
            time.sleep(NAP_S)
        period_s = BUSY_PERIOD_S if busy else IDLE_PERIOD_S


P = ParamSpec("P")
T = TypeVar("T")


def named_pool(name: str, threads: int | None = None) -> ThreadPoolExecutor:
    """Return a pool for one kind of work, so that masses of another kind cannot delay it."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"megatalker-{name}")


async def run_in(pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of ``work``, called in a thread of ``pool`` with the context variables of the caller."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(work, *args, **kwargs))
