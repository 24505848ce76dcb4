"""The conversations under way, so that they end when the server is told to stop."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

from loguru import logger

from megatalker.serving.background import start_task
from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.agent.turn_log import TurnLog
from megatalker_pipecat.page import Page

STOPS = (signal.SIGINT, signal.SIGTERM)


class Reception:
    """State that the server keeps between conversations. Pipecat's runner passes it to ``bot`` with the command line.

    Raises:
        SettingsError: the turn log cannot be written.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        manners = {"listens": plan.stt is not None, "answers": plan.llm is not None}
        self.page = Page(plan.engine, **manners, backends=plan.agent.backends)
        self.turns = TurnLog(plan.agent.turn_log)
        self._under_way: set[Conversation] = set()

    @property
    def count(self) -> int:
        """Conversations under way."""
        return len(self._under_way)

    async def hold(self, conversation: Conversation) -> None:
        """Run a conversation until it is over, or the server is told to stop."""
        self._under_way.add(conversation)
        try:
            await conversation.run(handle_sigint=False)
        finally:
            self._under_way.discard(conversation)

    @asynccontextmanager
    async def open(self, _app: object) -> AsyncIterator[None]:
        """The server's lifespan. The server waits for its clients when it is told to stop: they are let go first."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in STOPS}

        farewells: list[asyncio.Task[None]] = []

        def begin() -> None:
            farewells.append(start_task(self.let_go(), "megatalker-farewell"))

        def stop(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(begin)
            if callable(handler := before[signal.Signals(number)]):
                handler(number, frame)

        for number in STOPS:
            signal.signal(number, stop)
        yield
        for line in self.turns.close():
            logger.info(line)

    async def let_go(self) -> None:
        """End all conversations."""
        await asyncio.gather(*(conversation.worker.cancel() for conversation in self._under_way))
