"""One utterance from the server's side: what it may take, how it went, written down when it is over."""

import logging
import time
from typing import Any

from opentelemetry import trace

from megatalker.engine import SpeechStream
from megatalker.serving.server import logs
from megatalker.serving.server.callers import current_call
from megatalker.serving.server.meters import Meters, Route

logger = logging.getLogger(__name__)


class UtteranceAccount:
    """Opened before the engine is asked. Either :meth:`refused` or :meth:`ended` must follow.

    It is an OpenTelemetry span within the request's, which FastAPI makes.

    Args:
        route: how it was asked for.
        whole_text: all text is there from the start.
        voice: as asked for.
        meters: the server's.

    Raises:
        LimitError: the caller or its connection may have no further utterance now.
    """

    def __init__(self, route: Route, *, whole_text: bool, voice: str | None, meters: Meters) -> None:
        self._call = current_call()
        self._call.take_stream()
        self._route, self._whole_text, self._meters = route, whole_text, meters
        self._span = trace.get_tracer("megatalker").start_span(
            "speak", attributes={"megatalker.route": route, "megatalker.request_id": self._call.id}
        )
        self._voice = voice
        self.warnings: tuple[str, ...] = ()
        """What makes the recording that came along a poor reference."""

    def refused(self, error: BaseException) -> None:
        """The engine did not take it."""
        self._call.give_stream_back()
        self._span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._span.end()

    def ended(self, stream: SpeechStream) -> None:
        """It is over, or nobody listens any more."""
        self._call.give_stream_back()
        facts = stream.facts()
        self._meters.ended(stream, self._route, whole_text=self._whole_text)
        fields: dict[str, Any] = {
            "route": self._route,
            "key": self._call.caller.name,
            "voice": self._voice,
            "text_chars": stream.text_chars,
            "queue_wait_s": _rounded(facts.queue_wait_s),
            "ttfc_s": _rounded(facts.ttfc_s),
            "rtf": _rounded(facts.rtf),
            "frames": facts.frames,
            "underruns": facts.underruns,
            "backend": facts.backend,
            "codec": facts.codec,
            "switches": len(facts.switches),
            "finish_reason": facts.finish_reason,
            "unsaid_chars": facts.unsaid_chars,
            "error": None if stream.error is None else type(stream.error).__name__,
            "request_id": self._call.id,
        }
        logs.write("utterance", **fields)
        for name, at in (("prefilled", stream.prefilled_at), ("first chunk", stream.first_delivered_at)):
            if at is not None:
                self._span.add_event(name, timestamp=_since_1970(at))
        self._span.set_attributes({f"megatalker.{name}": value for name, value in fields.items() if value is not None})
        if stream.error is not None:
            self._span.set_status(trace.StatusCode.ERROR, str(stream.error))
        self._span.end()


def _since_1970(at: float) -> int:
    """A time of the monotonic clock, in nanoseconds of the other."""
    return time.time_ns() - int((time.monotonic() - at) * 1e9)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
