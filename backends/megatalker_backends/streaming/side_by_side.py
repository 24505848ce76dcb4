"""Runs work on single frames side by side: each in one thread, so that its bits do not depend on how many there are."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier

import torch
from torch import Tensor


def side_by_side(function: Callable[..., Tensor], *parts: Sequence[Tensor]) -> list[Tensor]:
    """Return ``function`` of each part; on a CPU in as many threads as the caller's operations use, if each gets one.

    Threads that share each operation instead wait for each other some hundred times a frame.
    """
    count = len(parts[0])
    if count == 1 or parts[0][0].device.type != "cpu":
        return [*map(function, *parts)]
    threads = torch.get_num_threads()
    if not 1 < threads <= count:
        return [*map(function, *parts)]
    made, items = [parts[0][0]] * count, enumerate(zip(*parts, strict=True))
    pool = _pool(threads)
    for done in [pool.submit(_work, function, items, made) for _ in range(threads)]:
        done.result()
    return made


def _work(function: Callable[..., Tensor], items: Iterable[tuple[int, tuple[Tensor, ...]]], made: list[Tensor]) -> None:
    with torch.inference_mode():
        for index, item in items:
            made[index] = function(*item)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of ``threads`` threads, each of which computes its operations alone."""
    pool, begun = ThreadPoolExecutor(threads, "megatalker-codec"), Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(_begin, begun)
    begun.wait()
    torch.set_num_threads(threads)  # for threads that begin later
    return pool


def _begin(begun: Barrier) -> None:
    torch.get_num_threads()  # the first call in a thread, as its first operation, takes over what was set last in any
    torch.set_num_threads(1)
    begun.wait()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_pool.cache_clear)
