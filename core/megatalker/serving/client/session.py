"""The client's state of one utterance: written by the connection's thread, read by the consumer's stream."""

import time
from collections import deque
from dataclasses import dataclass, field

from megatalker.engine.chunks import ChunkQueue, wake
from megatalker.engine.outputs import BackendSwitch, Chunk, StreamFacts
from megatalker.engine.word_times import SpokenWord
from megatalker.errors import MegatalkerError
from megatalker.serving.protocol.messages import Done, Event, Failed, Opened, Switched, Words
from megatalker.serving.protocol.packets import Packet


@dataclass(slots=True, eq=False)
class RemoteSession:
    """The state of one utterance. Times are ``time.monotonic()`` seconds of this machine."""

    id: str
    seed: int
    requested_at: float
    text_complete: bool
    chunks: ChunkQueue = field(default_factory=ChunkQueue)
    backend: str = ""
    codec: str = ""
    switches: tuple[BackendSwitch, ...] = ()
    frames_received: int = 0
    chunks_received: int = 0
    last_received_at: float | None = None
    words: deque[SpokenWord] = field(default_factory=deque)
    """Words that no consumer has taken; the server sends them after their audio."""
    server_facts: StreamFacts | None = None
    """Figures that the server sends with the end."""
    opened: bool = False
    quiet_since: float = 0.0
    """The server's last word, or the client's if that is later."""

    @property
    def awaited(self) -> bool:
        """Whether the server owes an answer to the request, or speech whose text is complete."""
        return not self.opened or self.text_complete

    def take_event(self, event: Event) -> bool:
        """Note what the server says; ``True`` when the utterance is over."""
        self.quiet_since = time.monotonic()
        match event:
            case Opened():
                self.opened, self.backend, self.codec, self.seed = True, event.backend, event.codec, event.seed
            case Switched():
                self._take_switch(event)
            case Words():
                self.words += [word.spoken() for word in event.words]
            case Done():
                self.server_facts = event.facts
                self.chunks.finish(event.finish_reason)
                return True
            case Failed():
                self.fail(event.error.exception())
                return True
        return False

    def take_packet(self, packet: Packet) -> None:
        """Hand a chunk to the consumer."""
        now = self.quiet_since = self.last_received_at = time.monotonic()
        self.frames_received, self.chunks_received = self.frames_received + packet.frames, self.chunks_received + 1
        chunk = Chunk(
            index=packet.index,
            pcm=packet.pcm,
            frames=packet.frames,
            sample_offset=packet.sample_offset,
            codes=packet.codes,
            requested_at=self.requested_at,
            decoded_at=now,
            delivered_at=now,
            final=packet.final,
        )
        wake(self.chunks.put(chunk))

    def fail(self, error: MegatalkerError) -> None:
        """End with an error, unless the utterance has ended."""
        self.chunks.finish("error", error)

    def _take_switch(self, event: Switched) -> None:
        self.switches = (*self.switches, event.switch())
        if event.kind == "talker":
            self.backend = event.target
        else:
            self.codec = event.target
