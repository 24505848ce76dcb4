"""One utterance from the server's side: what it may take, how it went, written down when it is over."""

import logging
from typing import Any

from megatalker.engine import SpeechStream
from megatalker.serving.server import logs
from megatalker.serving.server.callers import current_call
from megatalker.serving.server.meters import Meters, Route
from megatalker.serving.server.tracing import utterance_span

logger = logging.getLogger(__name__)


class UtteranceAccount:
    """Opened before the engine is asked. Either :meth:`refused` or :meth:`ended` must follow.

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
        self._span = utterance_span({"megatalker.route": route, "megatalker.request_id": self._call.id})
        self._voice = voice

    def refused(self, error: BaseException) -> None:
        """The engine did not take it."""
        self._call.give_stream_back()
        self._span.end({}, f"{type(error).__name__}: {error}")

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
            "error": None if stream.error is None else type(stream.error).__name__,
            "request_id": self._call.id,
        }
        logs.write("utterance", **fields)
        for name, at in (("prefilled", stream.prefilled_at), ("first chunk", stream.first_delivered_at)):
            if at is not None:
                self._span.event(name, at)
        known = {f"megatalker.{name}": value for name, value in fields.items() if value is not None}
        self._span.end(known, None if stream.error is None else str(stream.error))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
