"""Items of a Realtime conversation, each with its message in the language model's context."""

import json
from typing import Any

from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.processors.aggregators.llm_context import LLMContext

from megatalker.serving.protocol.leniency import FieldError
from megatalker.serving.protocol.realtime_messages import Item, ItemPart, ItemTruncate
from megatalker.serving.server.realtime_events import ConversationItem, ResponseItem, Tell
from megatalker.serving.server.realtime_items import RealtimeItems

NO_OUTPUT = "no output yet"
"""Result of a function in the language model's context until the client sends its output."""


def called_item(call: FunctionCallFromLLM) -> ConversationItem:
    """Return the item of a function call."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    item = Item.model_construct(
        type="function_call", call_id=call.tool_call_id, name=call.function_name, arguments=arguments
    )
    told = ConversationItem(item)
    told.spoken = True
    return told


def heard_item(name: str, text: str) -> ConversationItem:
    """Return the item of a spoken message."""
    part = ItemPart(type="input_audio", transcript=text)
    item = ConversationItem(Item(type="message", role="user", id=name, content=[part]))
    item.spoken = True
    return item


class ContextItems(RealtimeItems):
    """The items of a conversation, and what the language model is told of them.

    Args:
        tell: sends events.
        most_chars: characters of the longest text; a few times as many are kept.
        context: the language model's.
    """

    def __init__(self, tell: Tell, most_chars: int, context: LLMContext) -> None:
        super().__init__(tell, most_chars)
        self._context, self._most_text = context, most_chars
        self._messages: dict[str, Any] = {}
        self._cut: set[str] = set()
        self._calls: dict[str, str] = {}
        """Names of the items that call functions, by ``call_id``."""
        self._outputs: dict[str, str] = {}
        """Outputs whose calls the context does not have yet."""

    async def write(self, asked: Item, before: str | None) -> None:
        """Add an item of a client, and its messages. Raises as :meth:`create`."""
        where = "item.output" if asked.type == "function_call_output" else "item.content"
        if asked.type == "message" and not asked.text.strip():
            raise FieldError("item.content has no text", where)
        if len(asked.text) > self._most_text:
            raise FieldError(f"the item has {len(asked.text)} characters, expected at most {self._most_text}", where)
        called = asked.call_id in self._calls
        if asked.type == "function_call_output" and not called:
            raise FieldError(f"no function call {asked.call_id!r:.80} is in this conversation", "item.call_id")
        if asked.type == "function_call" and called:
            raise FieldError(f"a function call {asked.call_id!r:.80} is there already", "item.call_id")
        item = await self.create(asked, before, spoken=True)
        if asked.type == "function_call_output":
            self._outputs[asked.call_id or ""] = item.text
            self.keep_outputs()
            return
        new: list[Any]
        if asked.type == "function_call":
            function = {"name": asked.name, "arguments": asked.arguments}
            call = {"id": asked.call_id, "type": "function", "function": function}
            answer = {"role": "tool", "content": json.dumps(NO_OUTPUT), "tool_call_id": asked.call_id}
            new = [{"role": "assistant", "tool_calls": [call]}, answer]
            self._calls[asked.call_id or ""] = item.id
        else:
            new = [{"role": asked.role, "content": item.text}]
        earlier = [self._messages[one] for one in self.names_before(item) if one in self._messages]
        messages = self._context.messages
        at = len(messages)
        if before is not None:
            at = 1 + _place(messages, earlier[-1]) if earlier else 0
        self._context.set_messages([*messages[:at], *new, *messages[at:]])
        self._messages[item.id] = new[-1]

    def expect_output(self, item: ConversationItem, call_id: str) -> bool:
        """Take the output of a function that an item calls from now on; return whether the context has the call."""
        self._calls[call_id] = item.id
        return any(isinstance(message, dict) and call_id in _calls_in(message) for message in self._context.messages)

    def keep_outputs(self) -> None:
        """Put outputs of functions in the place of :data:`NO_OUTPUT`.

        The pipeline puts a call into the context behind the speech before it, which may be later than its output.
        """
        messages: list[Any] = self._context.messages
        for message in reversed(messages):
            call_id = message.get("tool_call_id") if isinstance(message, dict) else None
            if isinstance(call_id, str) and call_id in self._calls:
                self._messages.setdefault(self._calls[call_id], message)
                if call_id in self._outputs:
                    message["content"] = self._outputs.pop(call_id)

    def remember(self, item: ConversationItem, role: str) -> None:
        """Find the message of an item, which the pipeline has just put into the context, if it did."""
        if item.id in self._messages:
            return
        taken = set(map(id, self._messages.values()))
        for message in reversed(self._context.messages):
            if not isinstance(message, dict) or "tool_calls" in message:
                continue
            if message["role"] == role and id(message) not in taken:
                self._messages[item.id] = message
                self._apply_cut(item)
                return

    async def truncate(self, item: ResponseItem, event: ItemTruncate) -> None:
        await super().truncate(item, event)
        self._cut.add(item.id)
        self._apply_cut(item)

    def remove(self, item: ConversationItem) -> None:
        super().remove(item)
        self._cut.discard(item.id)
        gone = self._messages.pop(item.id, None)
        calls = {call_id for call_id, name in self._calls.items() if name == item.id}
        for call_id in calls:
            del self._calls[call_id]
            self._outputs.pop(call_id, None)
        if gone is not None or calls:
            messages = self._context.messages
            left = [message for message in messages if message is not gone and not calls & _calls_in(message)]
            self._context.set_messages(left)

    def _apply_cut(self, item: ConversationItem) -> None:
        if item.id in self._cut and item.id in self._messages:
            self._messages[item.id]["content"] = item.text


def _calls_in(message: Any) -> set[str]:
    """Return the function calls that a message makes or answers."""
    if not isinstance(message, dict):
        return set()
    return {call["id"] for call in message.get("tool_calls") or []} | {message.get("tool_call_id", "")}


def _place(messages: list[Any], wanted: Any) -> int:
    return next((at for at, message in enumerate(messages) if message is wanted), len(messages) - 1)
