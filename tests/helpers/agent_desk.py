"""The agent in the test's own process and event loop, on any engine, called as Pipecat's runner calls it."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket
from pipecat.runner.types import WebSocketRunnerArguments

from megatalker import Settings
from megatalker_pipecat.agent.bot import bot
from megatalker_pipecat.agent.plan import Endpoint, Plan
from megatalker_pipecat.agent.reception import Reception
from megatalker_pipecat.agent.settings import AgentSettings


class Desk:
    """Answers calls with the agent; ``url``: where it hears and thinks, ``None``: it says what it is told."""

    def __init__(self, url: str | None, **agent: Any) -> None:
        ears, mind = ((url and Endpoint("openai", "none", name, url)) or None for name in ("ears", "mind"))
        self.reception = Reception(Plan(Settings(), AgentSettings(**agent), ears, mind))
        self.over = asyncio.Event()
        """A call has ended."""

    async def answer(self, socket: WebSocket, transport: str | None) -> None:
        await socket.accept()
        arguments = WebSocketRunnerArguments(websocket=socket, transport_type=transport)
        arguments.cli_args = argparse.Namespace(verbose=1, reception=self.reception)
        await bot(arguments)
        self.over.set()


@asynccontextmanager
async def open_for_calls(desk: Desk) -> AsyncIterator[str]:
    """Yields the address; calls end before the block does."""
    app = FastAPI()

    @app.websocket("/ws")
    async def by_phone(socket: WebSocket) -> None:
        await desk.answer(socket, None)

    @app.websocket("/ws-client")
    async def by_websocket(socket: WebSocket) -> None:
        await desk.answer(socket, "websocket")

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
