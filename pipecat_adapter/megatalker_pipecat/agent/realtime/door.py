"""The way to ``/v1/realtime``: through the runner's own WebSocket, so that its keys and origins count here, too."""

from pipecat.runner.types import RunnerArguments, WebSocketRunnerArguments
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from megatalker.serving.server.realtime_events import SUBPROTOCOL

PATH, RUNNERS_PATH = "/v1/realtime", "/ws-client"
_MARK = "realtime"


class RealtimeDoor:
    """ASGI middleware: a WebSocket to :data:`PATH` becomes one to the runner's path, marked.

    Args:
        app: what is behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        state = {**scope.get("state", {}), _MARK: True}
        scope = {**scope, "path": RUNNERS_PATH, "raw_path": RUNNERS_PATH.encode(), "state": state}

        async def send_chosen(message: Message) -> None:
            if message["type"] == "websocket.accept" and SUBPROTOCOL in scope["subprotocols"]:
                message = {**message, "subprotocol": SUBPROTOCOL}  # browsers hang up on an answer without one
            await send(message)

        await self._app(scope, receive, send_chosen)


def is_realtime(arguments: RunnerArguments) -> bool:
    """Return whether a call came by :data:`PATH`."""
    return isinstance(arguments, WebSocketRunnerArguments) and getattr(arguments.websocket.state, _MARK, False)
