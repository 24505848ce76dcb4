"""Backends wrapped to be watched: what the engine asked of them, and when, without changing what they answer."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from megatalker.interfaces import (
    AVAILABLE,
    Codec,
    CodecBackend,
    CodecCapabilities,
    CodecState,
    DecodeStep,
    Frame,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins import BackendRegistry, hookimpl
from megatalker.plugins.checked import CheckedCodec, CheckedTalker

PATIENCE_S = 5.0
"""Longest time that a backend call waits for the consumer before it counts the consumer as blocked."""


@dataclass
class Log:
    """Counts of the calls that were made. Calls can be made to wait until the consumer has taken chunks.

    With ``gated`` set, the second frame is not decoded before the consumer holds the first chunk, and no chunk's codec
    call runs before the consumer holds the chunk before it. An engine that keeps chunks back would wait for itself: the
    call gives up after a while and notes it in ``kept_back``.
    """

    gated: bool = False
    frames: int = 0
    """Frames decoded."""
    codec_calls: int = 0
    slowest_decode_s: float = 0.0
    """The longest call for one frame of every stream."""
    slowest_codec_s: float = 0.0
    """The longest call, for each of its frames."""
    released: list[StreamHandle] = field(default_factory=list)
    opened: list[StreamHandle] = field(default_factory=list)
    kept_back: list[str] = field(default_factory=list)
    on_decode: Callable[[], None] | None = None
    """Called before each ``decode``; may raise, as a failing backend would."""
    _taken: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def taken(self) -> None:
        """The consumer holds one chunk more."""
        with self._changed:
            self._taken += 1
            self._changed.notify_all()

    def wait_for_consumer(self, chunks: int, what: str) -> None:
        """Block a backend call until the consumer holds ``chunks`` chunks."""
        if not self.gated or self.kept_back:
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._taken >= chunks, PATIENCE_S):
                self.kept_back.append(f"{what} ran while the consumer held {self._taken} chunks of {chunks}")


class WatchedTalker(TalkerDecoder):
    """Passes everything on to ``inner``, which its owner closes."""

    def __init__(self, inner: CheckedTalker, log: Log) -> None:
        self._inner = inner
        self._log = log

    @property
    def capabilities(self) -> TalkerCapabilities:
        return self._inner.capabilities

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = self._inner.prefill(requests)
        self._log.opened += handles
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> Callable[[], list[Frame]]:
        if self._log.on_decode is not None:
            self._log.on_decode()
        began = time.monotonic()
        finish = self._inner.decode(steps, return_logits=return_logits)
        seconds = time.monotonic() - began

        def finish_watched() -> list[Frame]:
            if self._log.frames == 1:
                self._log.wait_for_consumer(1, "frame 2")
            began = time.monotonic()
            frames = finish()
            self._log.slowest_decode_s = max(self._log.slowest_decode_s, seconds + time.monotonic() - began)
            self._log.frames += sum(not frame.ended for frame in frames)
            return frames

        return finish_watched

    def release(self, stream: StreamHandle) -> None:
        self._inner.release(stream)
        self._log.released.append(stream)

    def warmup(self) -> None:
        self._inner.warmup()


class WatchedCodec(Codec):
    """Logs the calls of a codec; see :class:`WatchedTalker`."""

    def __init__(self, inner: CheckedCodec, log: Log) -> None:
        self._inner = inner
        self._log = log

    @property
    def capabilities(self) -> CodecCapabilities:
        return self._inner.capabilities

    def open(self) -> CodecState:
        return self._inner.open()

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        self._log.wait_for_consumer(self._log.codec_calls, f"codec call {self._log.codec_calls + 1}")
        self._log.codec_calls += 1
        began = time.monotonic()
        chunks = self._inner.decode(states, codes)
        seconds = (time.monotonic() - began) / max(map(len, codes))
        self._log.slowest_codec_s = max(self._log.slowest_codec_s, seconds)
        return chunks

    def warmup(self) -> None:
        self._inner.warmup()


class _Plugin:
    def __init__(self, backends: Sequence[TalkerBackend | CodecBackend]) -> None:
        self._backends = backends

    @hookimpl
    def megatalker_backends(self) -> list[TalkerBackend | CodecBackend]:
        return list(self._backends)


def registry_of(talkers: dict[str, TalkerDecoder], codecs: dict[str, Codec]) -> BackendRegistry:
    """A registry whose backends are these loaded instances, by name."""
    backends: list[TalkerBackend | CodecBackend] = []
    for name, talker in talkers.items():
        backends.append(
            TalkerBackend(
                name=name,
                summary="loaded by the conformance suite",
                api_version=2,
                capabilities=talker.capabilities,
                probe=lambda *_: AVAILABLE,
                load=lambda *_, instance=talker: instance,
            )
        )
    for name, codec in codecs.items():
        backends.append(
            CodecBackend(
                name=name,
                summary="loaded by the conformance suite",
                api_version=2,
                capabilities=codec.capabilities,
                probe=lambda *_: AVAILABLE,
                load=lambda *_, instance=codec: instance,
            )
        )
    return BackendRegistry([("conformance", _Plugin(backends))])
