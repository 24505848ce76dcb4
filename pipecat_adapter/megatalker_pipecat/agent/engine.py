"""The engine that speaks in a conversation on this machine, loaded and warm before it begins."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.page.loading import load


@contextmanager
def engine_at_hand(plan: Plan) -> Iterator[None]:
    """Load what :class:`MegatalkerTTSService` will share for this plan, and keep it; the block must not be a coroutine.

    Raises:
        MegatalkerError: the engine cannot be opened; the message says why.
    """
    lease = asyncio.run(load(plan.engine))
    try:
        yield
    finally:
        asyncio.run(lease.release())
