"""The agent in the test's own process, on any engine, called as Pipecat's runner calls it."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import BackgroundTasks, FastAPI, WebSocket
from pipecat.runner.types import RunnerArguments, SmallWebRTCRunnerArguments, WebSocketRunnerArguments
from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
from pipecat.transports.smallwebrtc.request_handler import SmallWebRTCRequest, SmallWebRTCRequestHandler

from megatalker import Settings
from megatalker_pipecat.agent.bot import bot
from megatalker_pipecat.agent.plan import Endpoint, Plan
from megatalker_pipecat.agent.realtime.door import RealtimeDoor
from megatalker_pipecat.agent.reception import Reception
from megatalker_pipecat.agent.settings import AgentSettings
from waiting import HANG_S


class AgentDesk:
    """Answers calls with the agent; ``url``: where it hears and thinks, ``None``: it says what it is told."""

    def __init__(self, url: str | None, engine: Settings | None = None, **agent: Any) -> None:
        ears, mind = ((url and Endpoint("openai", "none", name, url)) or None for name in ("ears", "mind"))
        self.reception = Reception(Plan(engine or Settings(), AgentSettings(**agent), ears, mind))
        self.over = asyncio.Event()
        """A call has ended."""
        self.webrtc = SmallWebRTCRequestHandler()
        self.idle_timeout_s: float | None = 300.0
        self.body: dict[str, Any] = {}
        """Body of the page's latest call."""

    async def answer(self, arguments: RunnerArguments) -> None:
        arguments.pipeline_idle_timeout_secs = self.idle_timeout_s
        arguments.cli_args = argparse.Namespace(verbose=1, reception=self.reception)
        await bot(arguments)
        self.over.set()

    async def answer_socket(self, socket: WebSocket, transport: str | None) -> None:
        await socket.accept()
        await self.answer(WebSocketRunnerArguments(websocket=socket, transport_type=transport))

    async def answer_offer(self, offer: dict[str, Any], later: BackgroundTasks) -> object:
        async def begin(connection: SmallWebRTCConnection) -> None:
            later.add_task(self.answer, SmallWebRTCRunnerArguments(webrtc_connection=connection, body=self.body))

        return await self.webrtc.handle_web_request(SmallWebRTCRequest.from_dict(offer), begin)


def app_of(desk: AgentDesk) -> FastAPI:
    """Routes as of Pipecat's runner, besides those of the page."""
    app = FastAPI()
    app.add_middleware(RealtimeDoor)

    @app.websocket("/ws")
    async def by_phone(socket: WebSocket) -> None:
        await desk.answer_socket(socket, None)

    @app.websocket("/ws-client")
    async def by_websocket(socket: WebSocket) -> None:
        await desk.answer_socket(socket, "websocket")

    @app.post("/start")
    async def start(request: dict[str, Any]) -> dict[str, str]:
        desk.body = request["body"]
        return {"sessionId": "the"}

    @app.post("/sessions/the/api/offer")
    async def by_webrtc(offer: dict[str, Any], later: BackgroundTasks) -> object:
        return await desk.answer_offer(offer, later)

    return app


@asynccontextmanager
async def open_for_calls(desk: AgentDesk, *, loading: bool = False) -> AsyncIterator[str]:
    """Yields the address, when the engine is ready or still ``loading``; calls end before the block does."""
    app = app_of(desk)
    with desk.reception.page.serve(app):
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="on"))
        running = asyncio.create_task(server.serve())
        while not (server.started and (loading or desk.reception.page.ready)):
            assert not running.done(), "the server ended"
            await asyncio.sleep(0.01)
        try:
            yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            await desk.webrtc.close()
            server.should_exit = True
            async with asyncio.timeout(HANG_S):
                await running
