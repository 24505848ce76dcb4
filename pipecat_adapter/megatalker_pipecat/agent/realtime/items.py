"""Items of a Realtime conversation, each with its message in the language model's context."""

from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from megatalker.serving.protocol.leniency import FieldError
from megatalker.serving.protocol.realtime_messages import Item, ItemPart, ItemTruncate
from megatalker.serving.server.realtime_events import ConversationItem, ResponseItem, Tell
from megatalker.serving.server.realtime_items import RealtimeItems


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

    async def write(self, asked: Item, before: str | None) -> None:
        """Add an item of a client, and its message. Raises as :meth:`create`."""
        if asked.type == "function_call_output":
            raise FieldError("item.type is 'function_call_output', but this agent calls no functions", "item.type")
        if asked.type == "message" and not asked.text.strip():
            raise FieldError("item.content has no text", "item.content")
        if len(asked.text) > self._most_text:
            raise FieldError(
                f"the item has {len(asked.text)} characters, expected at most {self._most_text}", "item.content"
            )
        item = await self.create(asked, before, spoken=True)
        message: Any = {"role": asked.role, "content": item.text}
        earlier = [self._messages[one] for one in self.names_before(item) if one in self._messages]
        messages = self._context.messages
        at = len(messages)
        if before is not None:
            at = 1 + _place(messages, earlier[-1]) if earlier else 0
        self._context.set_messages([*messages[:at], message, *messages[at:]])
        self._messages[item.id] = message

    def remember(self, item: ConversationItem, role: str) -> None:
        """Find the message of an item, which the pipeline has just put into the context, if it did."""
        if item.id in self._messages:
            return
        taken = set(map(id, self._messages.values()))
        for message in reversed(self._context.messages):
            if isinstance(message, dict) and message["role"] == role and id(message) not in taken:
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
        if gone is not None:
            self._context.set_messages([message for message in self._context.messages if message is not gone])

    def _apply_cut(self, item: ConversationItem) -> None:
        if item.id in self._cut and item.id in self._messages:
            self._messages[item.id]["content"] = item.text


def _place(messages: list[Any], wanted: Any) -> int:
    return next((at for at, message in enumerate(messages) if message is wanted), len(messages) - 1)
