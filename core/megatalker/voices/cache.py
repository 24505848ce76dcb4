"""Voices that were made once and are asked for again, shared by all requests."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


@dataclass(slots=True)
class _Entry(Generic[Kept]):
    voice: "Future[Kept]"
    used_at: float


class VoiceCache(Generic[Kept]):
    """The voices used last, by a digest of all that they are made of: equal keys are equal voices. Thread-safe.

    Callers that ask for the same voice at the same time wait for one of them to make it; others do not wait.

    Args:
        most: number of voices to keep; beyond it the least recently used one is forgotten.
        ttl_s: seconds after which an unused voice is forgotten.
        clock: seconds, monotonic.
    """

    def __init__(self, most: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._ttl_s, self._clock = most, ttl_s, clock
        self._entries: OrderedDict[bytes, _Entry[Kept]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes, make: Callable[[], Kept]) -> Kept:
        """Return the voice of this key, made by ``make`` where it is missing. An error of ``make`` reaches all callers
        that wait for this voice, and nothing is kept then.
        """
        with self._lock:
            entry = self._used(key)
            mine = entry is None
            if entry is None:
                entry = self._entries[key] = _Entry(Future(), self._clock())
        if mine:
            try:
                entry.voice.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._entries.get(key) is entry:
                        del self._entries[key]
                entry.voice.set_exception(error)
        return entry.voice.result()

    def made(self, key: bytes) -> Kept | None:
        """Return the voice of this key, or ``None`` where it is not here or still being made; never waits."""
        with self._lock:
            entry = self._used(key)
        return entry.voice.result() if entry is not None and entry.voice.done() else None

    def __contains__(self, key: object) -> bool:
        """The voice of this key is made: :meth:`get` returns at once."""
        with self._lock:
            self._forget(self._clock())
            entry = self._entries.get(key) if isinstance(key, bytes) else None
            return entry is not None and entry.voice.done()

    def __len__(self) -> int:
        with self._lock:
            self._forget(self._clock())
            return len(self._entries)

    def _used(self, key: bytes) -> _Entry[Kept] | None:
        """The entry of this key, which counts as used now. The caller holds the lock."""
        now = self._clock()
        self._forget(now)
        entry = self._entries.get(key)
        if entry is not None:
            entry.used_at = now
            self._entries.move_to_end(key)
        return entry

    def _forget(self, now: float) -> None:
        while self._entries:
            key, oldest = next(iter(self._entries.items()))
            if len(self._entries) <= self._most and now - oldest.used_at < self._ttl_s:
                return
            del self._entries[key]
