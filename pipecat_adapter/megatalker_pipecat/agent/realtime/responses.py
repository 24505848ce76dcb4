"""Responses of the agent: what a client asks for, and what comes out of the pipeline."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

from pipecat.frames.frames import ErrorFrame, FunctionCallFromLLM, InterruptionFrame, LLMRunFrame
from starlette.websockets import WebSocket

from megatalker.serving.background import start_task
from megatalker.serving.protocol.realtime_messages import ItemTruncate, RealtimeError, ResponseFields
from megatalker.serving.server.realtime_events import new_id
from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.realtime.answers import AnswerError, Answers
from megatalker_pipecat.agent.realtime.connection import RealtimeConnection, at_most
from megatalker_pipecat.agent.realtime.functions import ClientFunctions
from megatalker_pipecat.agent.realtime.items import ContextItems
from megatalker_pipecat.agent.realtime.stages import AnswerListener, AnswerOutput, CommittedSpeech, KeptAnswers
from megatalker_pipecat.agent.reception import Reception

_SUPPORTED = {"conversation", "metadata", "modalities", "output_modalities"}
"""Fields of a response; the others would have to differ from the session's."""


class AnsweringConnection(RealtimeConnection, AnswerListener):
    """A connection with a conversation, whose answers are responses.

    What asks for an answer is pushed right in front of the turn detection, from where interruptions come: one that
    overtakes it comes out of the pipeline once the response is open, and ends it.

    Args:
        socket: accepted.
        reception: holds the agent's conversations.
        idle_timeout_s: the conversation ends when nobody says anything for this long.
    """

    def __init__(self, socket: WebSocket, reception: Reception, idle_timeout_s: float | None) -> None:
        super().__init__(socket, reception.plan.engine.server)
        self._plan = reception.plan
        self._committed = CommittedSpeech()
        self._conversation = Conversation(
            self._plan,
            None,
            AnswerOutput(self),
            reception.turns,
            behind_hearing=self._committed,
            behind_all=KeptAnswers(self),
            idle_timeout_s=idle_timeout_s,
        )
        context = self._conversation.context
        self._items = ContextItems(self.tell, self._plan.engine.max_text_chars, context)
        self._answers = Answers(self.tell, self._items.add, new_id("conv"))
        self._functions = ClientFunctions(self._conversation.model, context, self._items, self._answers)
        self._ignoring = False
        """Parts of a cancelled answer may still come out of the pipeline."""
        self._answering, self._kept = asyncio.Event(), asyncio.Event()
        self._answering.set()
        self._tasks: list[asyncio.Task[Any]] = []

    def _start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = start_task(work, f"megatalker-realtime-{name}")
        self._tasks = [*(one for one in self._tasks if not one.done()), task]
        return task

    @abstractmethod
    async def _transcribed(self) -> None:
        """Wait until the conversation has what was committed."""

    # ---- asked by the client

    async def _respond(self, asked: ResponseFields) -> None:
        if (active := self._answers.active) is not None:
            raise RealtimeError(
                f"response {active.id} is spoken; wait for response.done, or send response.cancel",
                None,
                "conversation_already_has_active_response",
            )
        for name in sorted(asked.model_fields_set - _SUPPORTED):
            if getattr(asked, name) is not None:
                field = f"response.{name}"
                raise RealtimeError(f"{field} is not supported: use session.update and items", field, "unsupported")
        if asked.conversation == "none":
            raise RealtimeError("responses are part of the conversation", "response.conversation", "unsupported")
        response = self._answers.open(asked.metadata)

        async def ask() -> None:
            await self._transcribed()
            await self._functions.settled()
            await self._answers.create()
            if self._answers.active is response:
                self._answering.clear()
                await self._committed.push_frame(LLMRunFrame())

        self._start(ask(), "answer")

    async def _cancel(self, name: str | None) -> None:
        active = self._answers.active
        if active is None or name not in (None, active.id):
            which = "" if name is None else f" {name!r:.80}"
            raise RealtimeError(f"no response{which} is spoken", "response_id", "response_cancel_not_active")
        self._ignoring = True
        await self._answers.cancel("client_cancelled")
        await at_most(self._answering.wait())  # an interruption would overtake what asks for the answer
        self._kept.clear()
        await self._conversation.worker.queue_frame(InterruptionFrame())
        await at_most(self._kept.wait())

    async def _truncate(self, event: ItemTruncate) -> None:
        item, active = self._items.heard(event), self._answers.active
        if active is not None and active.item is item:
            await self._cancel(None)
        await self._items.truncate(item, event)

    async def _answer_failed(self, stage: object, frame: ErrorFrame) -> None:
        """The model or the speech failed, before the end of the answer comes out of the pipeline."""
        if stage is self._conversation.model or self._answers.active is not None:
            self._answers.fail(_error_of(frame))
        else:
            await self.refuse(_error_of(frame))

    async def _failed(self, _worker: object, frame: ErrorFrame) -> None:
        if frame.processor not in (self._conversation.model, self._conversation.speech):
            await self.refuse(_error_of(frame))

    # ---- from the pipeline

    async def answer_begins(self) -> None:
        self._answering.set()
        if self._ignoring:
            return
        if self._answers.active is None:
            self._answers.open()
        await self._answers.create()

    async def audio(self, samples: bytes) -> None:
        await self._answers.audio(samples)

    async def word(self, text: str, *, joined: bool) -> None:
        await self._answers.word(text, joined=joined)

    async def functions_called(self, calls: Sequence[FunctionCallFromLLM]) -> None:
        await self.answer_begins()
        if not self._ignoring:
            await self._functions.tell(calls)

    async def answer_ends(self) -> None:
        await self._answers.end()

    async def interrupted(self) -> None:
        self._ignoring = False
        self._answering.set()
        await self._answers.cancel("turn_detected")

    async def answer_kept(self) -> None:
        if self._answers.last is not None:
            self._items.remember(self._answers.last, "assistant")
        if not self._ignoring:
            self._kept.set()


def _error_of(frame: ErrorFrame) -> AnswerError:
    return AnswerError(f"{frame.processor}: {frame.error}")
