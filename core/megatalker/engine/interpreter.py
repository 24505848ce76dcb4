"""Python's interpreter in a process that lives for its engine, and its end: then the engine's thread must not be inside
torch.

What :func:`spare_what_is_loaded`, :func:`collect_rarely` and :func:`switch_threads_often` change concerns the whole
process, so that a program which only happens to hold an engine is left as it is.
"""

import atexit
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

SWITCH_S = 0.0005  # measured: docs/notes/throughput.md#what-the-host-takes
YOUNG_BEFORE_FULL = 1000  # measured: docs/notes/throughput.md#what-the-host-takes
"""Collections of younger objects before a full one, for 10."""


def spare_what_is_loaded() -> None:
    """Exclude all objects of now from garbage collection: for a process that serves until it ends.

    Libraries and weights are some hundred thousand objects that stay: each full collection looks at all of them, in a
    pause of about 0.1 s in which no stream gets anything.
    """
    gc.collect()
    gc.freeze()


def collect_rarely() -> None:
    """Let full collections of garbage be rare: for a process that keeps an engine and takes no connections, whose
    garbage is small. What 500 streams hold takes 20 ms, every two seconds.
    """
    youngest, young, _ = gc.get_threshold()
    gc.set_threshold(youngest, young, YOUNG_BEFORE_FULL)


def switch_threads_often(interval_s: float = SWITCH_S) -> None:
    """Let the engine's thread have Python's lock again within these seconds, not five milliseconds.

    Every call of torch gives it up, and consumers that have just been handed audio take it.
    """
    sys.setswitchinterval(interval_s)


logger = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 10.0  # not tuned: a bound of leaving
"""How long leaving Python waits for the thread of an engine, which ends as soon as the call it is in lets it."""
INTERRUPT_PERIOD_S = 0.25  # not tuned: a poll period
UNFINISHED_STATUS = 1  # not tuned: a protocol
"""Exit status of a process that cannot wait any longer."""


class LeavingError(BaseException):  # no handler of errors may keep it
    """Raised inside a call, such as a compilation, that would outlive the interpreter."""


def at_exit(call: Callable[[], None]) -> None:
    """Have this called when Python is left, while threads and their pools still work; ``atexit`` comes after those."""
    register = getattr(threading, "_register_atexit", atexit.register)
    with suppress(RuntimeError):  # it is being left already
        register(call)


def end_thread(thread: threading.Thread) -> None:
    """Interrupt what ``thread`` does, its child processes (compilers) included, until it has ended.

    Where it cannot be interrupted in time, the process ends here, without the rest of its end: that would crash.
    """
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    status = UNFINISHED_STATUS
    try:
        while thread.is_alive() and time.monotonic() < deadline:
            _raise_in(thread)  # before it could start another process
            for process in _children(thread):
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            thread.join(INTERRUPT_PERIOD_S)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    if thread.is_alive():
        logger.error("a backend call cannot be interrupted; the process ends without waiting for it")
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def _raise_in(thread: threading.Thread) -> None:
    identity = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(LeavingError))


def _children(thread: threading.Thread) -> Iterator[int]:
    """Processes that the thread has started, and those that they have started; none where the system does not tell."""
    found = [f"/proc/self/task/{thread.native_id}/children"]
    while found:
        try:
            processes = [int(word) for word in Path(found.pop()).read_text().split()]
        except (OSError, ValueError):
            continue
        for process in processes:
            found += map(str, Path(f"/proc/{process}/task").glob("*/children"))
            yield process
