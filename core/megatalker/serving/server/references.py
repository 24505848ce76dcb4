"""Voices of recordings in requests: cloned one at a time while speech goes on, and kept for a while."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError
from megatalker.serving.background import run_in
from megatalker.serving.protocol.messages import SpeechFields
from megatalker.serving.protocol.reference_files import decode_reference
from megatalker.serving.server.callers import StreamLimitError
from megatalker.settings import ServerSettings, Settings
from megatalker.voices import Voice
from megatalker.voices.cache import VoiceCache
from megatalker.voices.library import VoiceLibrary
from megatalker.voices.reference_checks import examine_reference
from megatalker.voices.reference_edges import trim_edges

MAX_WAITING = 32
"""Recordings that wait for the encoders or are encoded, of all owners together."""
MAX_WAITING_OF_ONE = 8
"""Recordings of one owner among them. One of each owner at a time is before the encoders, so others wait for one."""


@dataclass(frozen=True, slots=True)
class ReferenceVoice:
    """A voice, and what makes its recording a poor reference."""

    voice: Voice
    warnings: tuple[str, ...]


class ReferenceVoices:
    """The voices of ``ref_audio``, by its content. Belongs to one event loop.

    Args:
        library: whose encoders clone.
        engine: the engine's settings.
        server: the server's settings; its cache of voices has as many places as this one.
    """

    def __init__(self, library: VoiceLibrary, engine: Settings, server: ServerSettings) -> None:
        self._library, self._settings = library, engine
        self._cache = VoiceCache[ReferenceVoice](server.voice_cache_size, server.voice_cache_ttl_s)
        self._encodings: dict[bytes, asyncio.Task[ReferenceVoice]] = {}
        self._waiting: Counter[str] = Counter()
        """Recordings that wait or are encoded, of each owner."""
        self._turns: dict[str, asyncio.Lock] = {}
        """Held by the recording of an owner that waits for the one thread or is there."""

    async def voice(self, owner: str, asked: SpeechFields) -> ReferenceVoice | None:
        """Return the voice of the recording in a request, or ``None`` where it has none.

        Raises:
            InvalidRequestError: the recording or its text cannot be used, or the checkpoint does not clone.
            UnsupportedError: what decodes it is not installed.
            StreamLimitError: too many recordings wait.
        """
        words = (asked.ref_text or "").strip() or None
        if not asked.ref_audio:
            if words is not None:
                raise InvalidRequestError("ref_text goes with ref_audio, which is missing")
            return None
        if asked.voice_file is not None:
            raise InvalidRequestError("ref_audio and voice_file both say who speaks; give one of them")
        if words is not None and len(words) > self._settings.max_text_chars:
            raise InvalidRequestError(
                f"ref_text has {len(words)} characters, expected at most {self._settings.max_text_chars}; give every "
                "word that is said in ref_audio, and no other"
            )
        self._library.require_base()
        if asked.x_vector_only_mode:
            words = None
        content = decode_reference(asked.ref_audio)
        text = b"" if words is None else b"in context: " + words.encode(errors="replace")
        key = blake2b(text + b"\0" + content, digest_size=16).digest()
        known = self._cache.made(key)
        if known is not None:
            return known
        encoding = self._encodings.get(key)
        if encoding is None:
            if self._waiting[owner] >= MAX_WAITING_OF_ONE or self._waiting.total() >= MAX_WAITING:
                raise StreamLimitError("too many recordings wait to be encoded; try again soon", retry_after_s=1.0)
            self._waiting[owner] += 1
            encoding = asyncio.create_task(self._encode(owner, key, lambda: self._made(content, words)))
            encoding.add_done_callback(lambda task: self._encoded(owner, key, task))
            self._encodings[key] = encoding
        return await asyncio.shield(encoding)  # which others may wait for, too

    async def _encode(self, owner: str, key: bytes, make: Callable[[], ReferenceVoice]) -> ReferenceVoice:
        async with self._turns.setdefault(owner, asyncio.Lock()):
            return await run_in(self._library.encoding, self._cache.get, key, make)

    def _encoded(self, owner: str, key: bytes, task: asyncio.Task[ReferenceVoice]) -> None:
        del self._encodings[key]
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner], self._turns[owner]
        if not task.cancelled():
            task.exception()  # requests that still wait are told

    def _made(self, content: bytes, words: str | None) -> ReferenceVoice:
        samples, faults = examine_reference(content, words)
        seconds, most = len(trim_edges(samples)) / SAMPLE_RATE, self._settings.max_reference_s
        if words is not None and seconds > most:
            raise InvalidRequestError(
                f"the reference audio lasts {seconds:.2f} s, expected at most {most:g} s where ref_text is given; cut "
                "it, 3 to 15 s of clear speech is best"
            )
        return ReferenceVoice(self._library.clone(samples, words), tuple(map(str, faults)))
