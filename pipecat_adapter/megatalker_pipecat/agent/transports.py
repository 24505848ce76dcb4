"""Transports of the agent: WebRTC, plain websocket, evals, telephone calls."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from loguru import logger
from pipecat.evals.transport import EvalTransportParams
from pipecat.runner import run
from pipecat.runner.types import RunnerArguments, WebSocketRunnerArguments
from pipecat.runner.utils import create_transport, parse_telephony_websocket
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport

from megatalker.errors import UnsupportedError
from megatalker_pipecat.agent.phone import PROVIDERS, missing_keys
from megatalker_pipecat.agent.realtime.door import RealtimeDoor

NOWHERE = "megatalker_agent.no_such_transport"
"""A module that does not exist: Pipecat's runner turns a transport off when it misses one."""


def offered(*, listens: bool) -> list[str]:
    """The transports that work, by the names of Pipecat's runner. A telephone has no keys to type on."""
    return ["webrtc", "websocket", *(PROVIDERS if listens else ())]


def offer(app: FastAPI, *, listens: bool, only: str | None) -> None:
    """Have the runner offer what works and nothing else, in its banner, its routes and its answers.

    Args:
        app: the runner's; routes added first win.
        listens: there is speech to text.
        only: the one transport that the command line asked for.
    """
    app.add_middleware(RealtimeDoor)
    works = offered(listens=listens)
    groups = {"telephony" if name in PROVIDERS else name for name in works}
    for name in run.TRANSPORT_ROUTE_DEPENDENCIES:
        if name not in groups:
            run.TRANSPORT_ROUTE_DEPENDENCIES[name] = (NOWHERE,)
            run.TRANSPORT_INSTALL_HINTS[name] = "needs speech to text" if name == "telephony" else "not offered here"

    @app.get("/status")
    async def status() -> dict[str, str | Sequence[str]]:
        return {"status": "ready", "transports": works if only is None else [only]}


async def transport_for(
    arguments: RunnerArguments, *, listens: bool, environ: Mapping[str, str] = os.environ
) -> tuple[BaseTransport, bool]:
    """The transport to one client, and whether it is a telephone.

    Raises:
        UnsupportedError: the client speaks a protocol that is not offered.
    """
    heard: dict[str, Any] = {"audio_in_enabled": listens, "audio_out_enabled": True}
    provider = None
    if isinstance(arguments, WebSocketRunnerArguments) and arguments.transport_type is None:
        provider, call = await parse_telephony_websocket(arguments.websocket)
        if provider not in (*PROVIDERS, "eval"):
            raise UnsupportedError(
                f"the first messages on /ws are of no provider that is offered ({', '.join(PROVIDERS)}); "
                "apps connect to /ws-client"
            )
        if provider in PROVIDERS and (missing := missing_keys(provider, environ)):
            logger.warning(
                f"this {provider} call is not hung up when the conversation ends before it: "
                f"set {' and '.join(missing)} in the environment"
            )
            params = FastAPIWebsocketParams(**heard, serializer=PROVIDERS[provider].serializer(call))
            return FastAPIWebsocketTransport(arguments.websocket, params), True
    transport = await create_transport(
        arguments,
        {
            "webrtc": lambda: TransportParams(**heard),
            "websocket": lambda: FastAPIWebsocketParams(**heard, serializer=ProtobufFrameSerializer()),
            "eval": lambda: EvalTransportParams(**heard),
            **{name: lambda: FastAPIWebsocketParams(**heard) for name in PROVIDERS},
        },
    )
    return transport, provider in PROVIDERS
