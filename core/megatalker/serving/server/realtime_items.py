"""The items of a conversation of OpenAI's Realtime protocol, within bounds."""

from megatalker.serving.protocol.leniency import FieldError
from megatalker.serving.protocol.realtime_messages import MOST_ITEMS, Item, ItemTruncate, RealtimeError
from megatalker.serving.server.realtime_events import ConversationItem, ResponseItem, Tell

KEPT = 4
"""A conversation keeps the text of this many of the longest responses."""


class RealtimeItems:
    """The items of one conversation in their order, and the events about them.

    Args:
        tell: sends events.
        most_chars: characters that may wait to be spoken.
    """

    def __init__(self, tell: Tell, most_chars: int) -> None:
        self._tell, self._most_chars = tell, most_chars
        self._items: list[ConversationItem] = []

    @property
    def last_name(self) -> str | None:
        """Name of the last item."""
        return self._items[-1].id if self._items else None

    def names_before(self, item: ConversationItem) -> list[str]:
        """Return the names of the items before one, in their order."""
        return [one.id for one in self._items[: self._items.index(item)]]

    def unspoken(self) -> list[ConversationItem]:
        """Return the items that were not spoken yet."""
        return [item for item in self._items if not item.spoken]

    def find(self, name: str, field: str) -> ConversationItem:
        """Return an item by its name, which ``field`` of an event gives; raises ``RealtimeError`` without one."""
        for item in self._items:
            if item.id == name:
                return item
        raise RealtimeError(f"there is no item {name!r:.80} in this conversation", field, "item_not_found")

    async def retrieve(self, name: str) -> None:
        """Tell an item."""
        await self._tell("conversation.item.retrieved", item=self.find(name, "item_id").shown())

    async def delete(self, name: str) -> None:
        """Remove an item."""
        self.remove(self.find(name, "item_id"))
        await self._tell("conversation.item.deleted", item_id=name)

    async def create(self, asked: Item, before: str | None, *, spoken: bool = False) -> ConversationItem:
        """Add an item of a client behind the item ``before``.

        Args:
            asked: the item.
            before: as ``previous_item_id`` of the event.
            spoken: it does not wait to be spoken.

        Raises:
            FieldError: it cannot be an item of a conversation, or too much would wait to be spoken.
        """
        if asked.type == "item_reference":
            raise FieldError("item.type is 'item_reference', which stands in the input of a response", "item.type")
        if any(item.id == asked.id for item in self._items):
            raise FieldError(f"an item {asked.id!r} is there already; use another id, or none", "item.id")
        if before not in (None, "root"):
            self.find(before, "previous_item_id")
        item = ConversationItem(asked)
        item.spoken = spoken
        waiting = self.unspoken()
        chars, most = sum(len(other.text) + 1 for other in waiting) + len(item.text), self._most_chars
        if len(waiting) >= MOST_ITEMS or chars > most:
            raise RealtimeError(
                f"{len(waiting) + 1} items with {chars} characters would wait to be spoken, expected at most "
                f"{MOST_ITEMS} with {most}; send response.create, or conversation.item.delete",
                "item",
                "too_many_items",
            )
        await self.add(item, before)
        await self._tell("conversation.item.done", item=item.shown())
        return item

    async def add(self, item: ConversationItem, before: str | None = None) -> None:
        """Put an item behind another one, by default at the end."""
        names = [item.id for item in self._items]
        at = 0 if before == "root" else names.index(before) + 1 if before in names else len(names)
        self._items.insert(at, item)
        previous = names[at - 1] if at else None
        self._forget_spoken()
        await self._tell("conversation.item.added", previous_item_id=previous, item=item.shown())

    def heard(self, event: ItemTruncate) -> ResponseItem:
        """Return the item of a response that an event truncates; raises ``FieldError`` where it is none."""
        item = self.find(event.item_id, "item_id")
        if not isinstance(item, ResponseItem):
            raise FieldError(f"item {event.item_id!r} has no audio; truncate what a response has spoken", "item_id")
        if event.content_index != 0:
            raise FieldError(f"content_index is {event.content_index}, expected 0", "content_index")
        return item

    async def truncate(self, item: ResponseItem, event: ItemTruncate) -> None:
        """Keep what was played of an item, which is not being spoken any more."""
        if event.audio_end_ms > item.audio_ms:
            raise FieldError(
                f"audio_end_ms is {event.audio_end_ms:g}, but the item has {item.audio_ms:.0f} ms of audio",
                "audio_end_ms",
            )
        item.truncate(event.audio_end_ms)
        told = {"item_id": item.id, "content_index": 0, "audio_end_ms": int(event.audio_end_ms)}
        await self._tell("conversation.item.truncated", **told)

    def remove(self, item: ConversationItem) -> None:
        """Forget an item."""
        self._items.remove(item)

    def _forget_spoken(self) -> None:
        """Keep the conversation within bounds: the oldest items that were spoken go."""
        spoken = iter([item for item in self._items if item.spoken])
        while len(self._items) > MOST_ITEMS or sum(len(item.text) for item in self._items) > KEPT * self._most_chars:
            if (oldest := next(spoken, None)) is None:
                return
            self.remove(oldest)
