"""The engine that speaks in all conversations, loaded and warm before the first of them."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from megatalker import Engine
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.agent.plan import Plan


@contextmanager
def engine_at_hand(plan: Plan) -> Iterator[Engine]:
    """Load what :class:`MegatalkerTTSService` will share for this plan, and keep it; the block must not be a coroutine.

    Raises:
        MegatalkerError: the engine cannot be opened; the message says why.
    """
    wanted = plan.engine
    _tell(f"loading checkpoint {wanted.checkpoint!r}, backend {wanted.backend!r} ...")
    began = time.monotonic()
    lease = asyncio.run(MegatalkerTTSService.preload(wanted))
    engine = lease.engine
    assert isinstance(engine, Engine), "without a server's address, the engine is one of this process"
    try:
        _tell(f"backend {engine.backend!r} is ready after {time.monotonic() - began:.1f} s")
        yield engine
    finally:
        asyncio.run(lease.release())


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command's output
