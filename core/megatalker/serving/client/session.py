"""The client's state of one utterance: written by connections' threads, read by the consumer's stream."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine.speech.chunks import ChunkQueue, PlaybackClock, wake
from megatalker.engine.speech.outputs import BackendSwitch, Chunk, Continuation, ReachedMark, StreamEnd, StreamFacts
from megatalker.engine.speech.word_times import SpokenWord
from megatalker.errors import ConnectionFailedError, MegatalkerError
from megatalker.serving.protocol.messages import (
    CancelMessage,
    Done,
    Event,
    Failed,
    Finish,
    Marks,
    Open,
    Opened,
    Request,
    Said,
    SegmentEnds,
    Switched,
    Text,
    Words,
)
from megatalker.serving.protocol.packets import Packet

if TYPE_CHECKING:
    from megatalker.serving.client.connection import RemoteConnection

logger = logging.getLogger(__name__)

NOT_SERVING = frozenset({"CapacityError", "EngineClosedError", "BackendFaultError"})
"""Errors of a server that has nothing against the request: it is full, warms up, drains, or can speak no more."""


class ServerList:
    """The servers of a client, and which of them is asked first: the one that served last."""

    def __init__(self, connections: "Sequence[RemoteConnection]") -> None:
        self.all, self._first = connections, 0

    @property
    def first(self) -> "RemoteConnection":
        """The one that new utterances are sent to."""
        return self.all[self._first]

    def after(self, lost: "RemoteConnection") -> "RemoteConnection":
        """Return the one that is asked where this one cannot serve."""
        place = self.all.index(lost)
        following = (place + 1) % len(self.all)
        if self._first == place:
            self._first = following
        return self.all[following]


@dataclass(slots=True, eq=False)
class RemoteSession:
    """The state of one utterance. Times are ``time.monotonic()`` seconds of this machine.

    Where there are several servers and the one that speaks cannot be reached any more, the next one goes on from the
    codes that are here: each is asked once before the next chunk.
    """

    open: Open
    """The request as it was sent first."""
    servers: ServerList
    return_codes: bool
    """Chunks carry codes."""
    requested_at: float
    text_complete: bool
    chunks: ChunkQueue = field(default_factory=ChunkQueue)
    backend: str = ""
    codec: str = ""
    switches: tuple[BackendSwitch, ...] = ()
    frames_received: int = 0
    samples_received: int = 0
    """Samples of all chunks."""
    silence_received: int = 0
    """Samples of chunks without frames."""
    chunks_received: int = 0
    last_received_at: float | None = None
    _playback: PlaybackClock = field(default_factory=PlaybackClock)
    words: deque[SpokenWord] = field(default_factory=deque)
    """Words that no consumer has taken; the server sends them after their audio."""
    server_facts: StreamFacts | None = None
    """Figures that the server sends with the end."""
    _words_received: int = 0
    _words_known: int = 0
    """Words that came from servers before this one, which this one tells again."""
    _told: list[Request] = field(default_factory=list)
    """Text, and its end."""
    _codes: list[NDArray[np.int64]] = field(default_factory=list)
    _ends: list[StreamEnd] = field(default_factory=list)
    _marks: list[ReachedMark] = field(default_factory=list)
    """Those of the next chunk."""
    _marks_received: int = 0
    _moves_left: int = 0
    _unwanted: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    connection: "RemoteConnection" = field(init=False)
    """To the server that speaks."""
    seed: int = field(init=False)
    opened: bool = False
    quiet_since: float = 0.0
    """The server's last word, or the client's if that is later."""

    def __post_init__(self) -> None:
        assert self.open.seed is not None, "the client has chosen one"
        self.connection, self.seed, self._moves_left = self.servers.first, self.open.seed, len(self.servers.all) - 1

    @property
    def id(self) -> str:
        """The name of the utterance."""
        return self.open.id

    def send(self, message: Request) -> None:
        """Send this to the server that speaks; text goes to each that goes on, too."""
        with self._lock:
            if len(self.servers.all) > 1 and isinstance(message, Text | Finish):
                self._told.append(message)
            self.connection.send(self, message)

    def cancel(self) -> None:
        """Nobody listens any more. Takes no lock: a finalizer may call this while its thread holds any."""
        self._unwanted = True
        self.connection.send(self, CancelMessage(id=self.id))

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
                known, self._words_known = self._words_known, max(0, self._words_known - len(event.words))
                self.words += (new := [word.spoken(estimated=event.estimated) for word in event.words[known:]])
                self._words_received += len(new)
            case SegmentEnds():
                self._ends += [end.end() for end in event.ends]
            case Marks():
                self._marks += [mark.reached() for mark in event.marks]
            case Done():
                self.server_facts = event.facts
                self.chunks.finish(event.finish_reason)
                return True
            case Failed():
                if event.error.type not in NOT_SERVING or not self._move(event.error.message):
                    self.fail(event.error.exception())
                return True
        return False

    def take_packet(self, packet: Packet) -> None:
        """Hand a chunk to the consumer."""
        now = self.quiet_since = self.last_received_at = time.monotonic()
        self._playback.deliver(now, len(packet.pcm) / SAMPLE_RATE)
        marks, self._marks = tuple(self._marks), []
        chunk = Chunk(
            index=self.chunks_received,
            pcm=packet.pcm,
            frames=packet.frames,
            sample_offset=self.samples_received,
            codes=packet.codes if self.return_codes else None,
            requested_at=self.requested_at,
            decoded_at=now,
            delivered_at=now,
            final=packet.final,
            marks=marks,
        )
        with self._lock:
            self.frames_received, self.chunks_received = self.frames_received + packet.frames, self.chunks_received + 1
            self.samples_received += len(packet.pcm)
            self.silence_received += 0 if packet.frames else len(packet.pcm)
            self._marks_received += len(marks)
            if len(self.servers.all) > 1:
                known = packet.codes is not None or not packet.frames  # else it is another kind of server
                self._moves_left = len(self.servers.all) if known else 0  # this one, too: it was there a moment ago
                self._codes += [] if packet.codes is None else [packet.codes]
        wake(self.chunks.put(chunk))

    def fail(self, error: MegatalkerError) -> None:
        """End with an error, unless the utterance has ended, or another server goes on with it."""
        if not isinstance(error, ConnectionFailedError) or not self._move(str(error)):
            self.chunks.finish("error", error)

    def _move(self, why: str) -> bool:
        """Let the next server go on, if there is one that was not asked since the last chunk; returns whether."""
        with self._lock:
            if not self._moves_left or self._unwanted or self.chunks.reason is not None:
                return False
            self._moves_left -= 1
            self.connection = self.servers.after(self.connection)
            logger.warning("an utterance goes on at %s after %d frames: %s", self.connection, self.frames_received, why)
            self.opened, self.quiet_since, self._words_known = False, time.monotonic(), self._words_received
            self.connection.send(self, self.open.model_copy(update={"after": self._said()}))
            for message in self._told:
                self.connection.send(self, message)
            return True

    def _said(self) -> Said | None:
        if not self.chunks_received:
            return None
        ahead_s = max(0.0, self._playback.ahead(time.monotonic()))
        codes = np.concatenate(self._codes) if self._codes else np.empty((0, 0), np.int64)
        silence, marks, heard = self.silence_received, self._marks_received, self.samples_received
        return Said.of(Continuation(codes, tuple(self._ends), ahead_s, silence, marks, heard))

    def _take_switch(self, event: Switched) -> None:
        self.switches = (*self.switches, event.switch())
        if event.kind == "talker":
            self.backend = event.target
        else:
            self.codec = event.target
