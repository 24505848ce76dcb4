"""The browser client, served by Pipecat's runner in place of its own, which loads code from the internet."""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from megatalker import Engine
from megatalker_pipecat.agent.plan import Plan

CLIENT = Path(str(files("megatalker_pipecat.agent") / "client"))


def serve_page(app: FastAPI, plan: Plan, engine: Engine) -> None:
    """Add the client at ``/client/`` and what it needs to know at ``/agent``. Routes added first win."""
    app.mount("/client", StaticFiles(directory=CLIENT, html=True))

    @app.get("/agent")
    async def agent() -> dict[str, object]:
        return {
            "listens": plan.stt is not None,
            "answers": plan.llm is not None,
            "checkpoint": engine.checkpoint.name,
            "backend": engine.backend,
        }
