"""One WebSocket connection: reads what the client asks for; each utterance sends its answer in a task of its own."""

import asyncio

from starlette.websockets import WebSocket, WebSocketDisconnect

from megatalker.errors import InvalidRequestError
from megatalker.serving.protocol.messages import Cancel, Failed, Finish, Open, Request, Text, read_request
from megatalker.serving.server.callers import current_call
from megatalker.serving.server.link import Link, receive_text
from megatalker.serving.server.logs import log_ignored
from megatalker.serving.server.problems import problem
from megatalker.serving.server.socket_utterance import SocketUtterance
from megatalker.serving.server.speaker import Speaker
from megatalker.settings import ServerSettings


class Conversation:
    """Obeys one client until it goes away; then everything it began is cancelled."""

    def __init__(self, socket: WebSocket, speaker: Speaker, settings: ServerSettings) -> None:
        self._socket, self._speaker, self._settings = socket, speaker, settings
        self._link = Link(socket, speaker.socket_errors.of_owner(current_call().owner))
        self._utterances: dict[str, SocketUtterance] = {}

    async def run(self) -> None:
        """Serve the connection, which must have been accepted."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._listen(tasks)
        except* WebSocketDisconnect:
            pass  # which has cancelled the tasks

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                text = await receive_text(self._socket)
                await self._obey(*read_request(text, strict=self._settings.strict), tasks)
            except InvalidRequestError as error:
                await self._link.count_error()
                self._speaker.meters.refused(error, "websocket")
                await self._link.tell(Failed(id=None, error=problem(error)))

    async def _obey(self, request: Request, ignored: tuple[str, ...], tasks: asyncio.TaskGroup) -> None:
        log_ignored(ignored)
        if isinstance(request, Open):
            await self._open(request, ignored, tasks)
            return
        utterance = self._utterances.get(request.id)
        if utterance is None:
            raise InvalidRequestError(f"{request.type}: no utterance {request.id!r} is open; open it, or it has ended")
        match request:
            case Text():
                utterance.feed(request.text)
            case Finish():
                utterance.finish()
            case Cancel():
                utterance.stream.cancel()

    async def _open(self, request: Open, ignored: tuple[str, ...], tasks: asyncio.TaskGroup) -> None:
        if request.id in self._utterances:
            raise InvalidRequestError(f"open: an utterance {request.id!r} is open already; use another id")
        try:
            stream = await self._speaker.begin(
                request.text,
                request,
                "websocket",
                return_codes=request.return_codes,
                word_times=request.word_times,
            )
        except Exception as error:
            await self._link.count_error()
            self._speaker.meters.refused(error, "websocket")
            await self._link.tell_failure(request.id, error)
            return
        utterance = SocketUtterance(
            request,
            stream,
            self._link,
            max_piece_chars=self._speaker.engine.settings.max_text_chars,
            warnings=self._speaker.warnings(stream),
            instruct=self._speaker.instruct_fate(request),
            ignored=ignored,
            text_timeout_s=self._settings.text_timeout_s,
        )
        self._utterances[request.id] = utterance
        task = tasks.create_task(utterance.run())
        task.add_done_callback(lambda _: self._end(request.id))  # runs even if the task never began

    def _end(self, name: str) -> None:
        self._speaker.end(self._utterances.pop(name).stream)
