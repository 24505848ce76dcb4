"""Functions of a client that the language model may call: the client computes them and sends their output."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pipecat.adapters.llm.schemas.tools_schema import AdapterType, ToolsSchema
from pipecat.frames.frames import FunctionCallFromLLM, FunctionCallResultProperties
from pipecat.processors.aggregators.llm_context import NOT_GIVEN, LLMContext
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallParams, LLMService

from megatalker.serving.protocol.realtime_messages import AgentSessionFields, RealtimeError
from megatalker_pipecat.agent.realtime.answers import Answers
from megatalker_pipecat.agent.realtime.connection import at_most
from megatalker_pipecat.agent.realtime.items import NO_OUTPUT, ContextItems, called_item


class ClientFunctions:
    """Passes functions of one client to the language model, and the model's calls to the client.

    Pipecat takes :data:`NO_OUTPUT` as the result of each call at once: whoever speaks meanwhile interrupts no call, and
    the conversation waits for none. The client's output takes its place later.

    Args:
        model: answers; calls functions if it is a language model.
        context: what the model is told.
        items: of the conversation.
        answers: what is told of the responses.
    """

    def __init__(self, model: FrameProcessor, context: LLMContext, items: ContextItems, answers: Answers) -> None:
        self._context, self._items, self._answers = context, items, answers
        self._can_call = isinstance(model, LLMService)
        self._coming: set[str] = set()
        """Calls that the client knows and the context does not have yet."""
        self._settled = asyncio.Event()
        self._settled.set()
        self.shown: dict[str, Any] = {"tools": [], "tool_choice": "auto" if self._can_call else "none"}
        """Fields of the session."""
        if isinstance(model, LLMService):
            model.register_function(None, self._call)

    def check(self, fields: AgentSessionFields) -> None:
        """Raise ``RealtimeError`` if a session cannot have the functions of ``fields``."""
        tools = self.shown["tools"] if fields.tools is None else [tool.model_dump() for tool in fields.tools]
        names, choice = [tool["name"] for tool in tools], fields.tool_choice
        if tools and not self._can_call:
            raise RealtimeError("this agent has no language model to call functions", "session.tools", "unsupported")
        if len(set(names)) < len(names):
            raise RealtimeError("session.tools has two functions of one name", "session.tools", "invalid_value")
        if choice is not None and not isinstance(choice, str) and choice.name not in names:
            raise RealtimeError(
                f"session.tool_choice is {choice.name!r}, which is none of session.tools",
                "session.tool_choice",
                "invalid_value",
            )

    def update(self, fields: AgentSessionFields) -> None:
        """Let the model call other functions from the next response on."""
        if fields.tools is not None:
            tools = [tool.model_dump(exclude_none=True) for tool in fields.tools]
            functions = [{"type": "function", "function": _without_type(tool)} for tool in tools]
            schema = ToolsSchema(standard_tools=[], custom_tools={AdapterType.OPENAI: functions})
            self._context.set_tools(schema if functions else NOT_GIVEN)
            self.shown["tools"] = tools
        if (choice := fields.tool_choice) is not None:
            self.shown["tool_choice"] = choice if isinstance(choice, str) else choice.model_dump()
        wanted = self.shown["tool_choice"]
        meant: Any = wanted if isinstance(wanted, str) else {"type": "function", "function": _without_type(wanted)}
        self._context.set_tool_choice(meant if self.shown["tools"] else NOT_GIVEN)

    async def tell(self, calls: Sequence[FunctionCallFromLLM]) -> None:
        """Tell calls of the active response."""
        for call in calls:
            item = called_item(call)
            if not self._items.expect_output(item, call.tool_call_id):
                self._coming.add(call.tool_call_id)
                self._settled.clear()
            await self._answers.call(item, str(item.shown()["arguments"]))

    async def settled(self) -> None:
        """Wait until the context has the calls that were told, and their outputs."""
        await at_most(self._settled.wait())

    async def _call(self, asked: FunctionCallParams) -> None:
        async def kept() -> None:
            self._items.keep_outputs()
            self._coming.discard(asked.tool_call_id)
            if not self._coming:
                self._settled.set()

        properties = FunctionCallResultProperties(run_llm=False, on_context_updated=kept)
        await asked.result_callback(NO_OUTPUT, properties=properties)


def _without_type(function: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in function.items() if name != "type"}
