"""Launches of an engine on fake backends, in order, and requests that arrive during one of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine_stage import TEXT
from megatalker.engine import Engine, SpeechStream

Event = tuple[str, list[int]]


@dataclass
class Launches:
    """Calls of the backends, in order: handles of prompts and of frames, frames of each stream of the codec."""

    events: list[Event] = field(default_factory=list)
    on_launch: Callable[[int], None] = lambda index: None
    """Given the index of the event that begins."""
    arrived_at: int = -1
    """Index of the launch during which a request arrived."""

    def note(self, kind: str, what: list[int]) -> None:
        self.events.append((kind, what))
        self.on_launch(len(self.events) - 1)

    def after(self, index: int, count: int) -> list[Event]:
        return self.events[index + 1 : index + 1 + count]


def begin(engine: Engine, count: int) -> list[SpeechStream]:
    """Streams that the engine finds waiting all at once."""
    with engine.borrow_backends():
        return [engine.speak(TEXT, seed=seed) for seed in range(count)]


def hear(*streams: SpeechStream) -> None:
    for stream in streams:
        assert len(stream.read_all())


def arrive_once(launches: Launches, engine: Engine, when: Callable[[list[Event]], bool]) -> list[SpeechStream]:
    """A request arrives during the first launch for which ``when`` holds."""
    arrived: list[SpeechStream] = []

    def look(index: int) -> None:
        if not arrived and when(launches.events):
            launches.arrived_at = index
            arrived.append(engine.speak(TEXT, seed=99))

    launches.on_launch = look
    return arrived
