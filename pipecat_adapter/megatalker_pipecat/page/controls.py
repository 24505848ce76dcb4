"""Handles the page's buttons in one conversation: stop the speech, choose voice, language and backend."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipecat.frames.frames import TTSUpdateSettingsFrame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frameworks.rtvi import RTVIProcessor
from pipecat.processors.frameworks.rtvi.models import ClientMessage

from megatalker.engine import BackendSwitch
from megatalker.errors import InvalidRequestError
from megatalker_pipecat.service import MegatalkerTTSService

STOP, SPEAK_AS = "stop", "speak-as"


class Controls:
    """Answers the page's RTVI client messages, and ignores those of other types.

    ``stop`` interrupts without a word. ``speak-as`` changes the settings it names, from the next sentence on, and is
    answered with them. A server message of type ``backend`` tells when speech goes on on another backend.
    """

    def __init__(
        self,
        worker: PipelineWorker,
        speech: MegatalkerTTSService,
        offered: Callable[[], Mapping[str, Sequence[str]]],
    ) -> None:
        """Register the handlers.

        Args:
            worker: runs the conversation, with RTVI enabled.
            speech: the service in it.
            offered: returns the choices for ``voice``, ``language`` and ``backend``.
        """
        self._worker, self._offered = worker, offered
        worker.rtvi.add_event_handler("on_client_message", self._take)
        speech.add_event_handler("on_backend_switched", self._report_switch)

    async def speak_as(self, choice: Mapping[str, str]) -> None:
        """Speak like this from the next sentence on.

        Raises:
            InvalidRequestError: something is not offered; nothing is changed.
        """
        offered = self._offered()
        for kind, name in choice.items():
            if name not in offered.get(kind, ()):
                expected = ", ".join(offered.get(kind, ())) or f"nothing: one chooses {', '.join(offered)}"
                raise InvalidRequestError(f"{kind} is {name!r}, expected {expected}")
        wanted: dict[str, Any] = dict(choice)
        await self._worker.queue_frame(TTSUpdateSettingsFrame(delta=MegatalkerTTSService.Settings(**wanted)))

    async def _take(self, rtvi: RTVIProcessor, message: ClientMessage) -> None:
        if message.type == STOP:
            await rtvi.interrupt_bot()
        elif message.type == SPEAK_AS:
            choice: dict[str, Any] = message.data or {}
            try:
                await self.speak_as(choice)
            except InvalidRequestError as error:
                await rtvi.send_error_response(message, str(error))
            else:
                await rtvi.send_server_response(message, choice)

    async def _report_switch(self, _service: object, switch: BackendSwitch) -> None:
        news = {"type": "backend", "kind": switch.kind, "backend": switch.target}
        await self._worker.rtvi.send_server_message(news)
