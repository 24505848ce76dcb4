"""OpenTelemetry spans of requests and utterances, where the extra ``tracing`` is installed.

The API alone records nothing. The SDK and an exporter come from whoever wants the spans, such as
``opentelemetry-instrument megatalker serve``.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import HTTPConnection

try:
    from opentelemetry import trace
    from opentelemetry.propagate import extract
except ImportError:
    available = False
else:
    available = True

SCOPE = "megatalker"
Attributes = dict[str, str | int | float | bool]


class Span:
    """A span, or nothing in its place."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def answered(self, status: int) -> None:
        """The status of a request's answer."""
        if self._span is not None:
            self._span.set_attribute("http.response.status_code", status)
            if status >= 500:
                self._span.set_status(trace.StatusCode.ERROR)

    def event(self, name: str, at: float) -> None:
        """Something happened ``at`` this time of the monotonic clock."""
        if self._span is not None:
            self._span.add_event(name, timestamp=_nanoseconds(at))

    def end(self, attributes: Attributes, error: str | None = None) -> None:
        """It is over; ``error`` says what went wrong."""
        if self._span is not None:
            self._span.set_attributes(attributes)
            if error is not None:
                self._span.set_status(trace.StatusCode.ERROR, error)
            self._span.end()


@contextmanager
def request_span(connection: HTTPConnection) -> Iterator[Span]:
    """The span of one request or connection, a child of the one that the client names in ``traceparent``."""
    if not available:
        yield Span()
        return
    method = connection.scope.get("method", "WEBSOCKET")
    with trace.get_tracer(SCOPE).start_as_current_span(
        method,
        context=extract(connection.headers),
        kind=trace.SpanKind.SERVER,
        attributes={"http.request.method": method, "url.path": connection.scope["path"]},
    ) as span:
        yield Span(span)
        route = connection.scope.get("route")  # known by now; names of paths would be without number
        if route is not None:
            span.update_name(f"{method} {route.path}")


def utterance_span(attributes: Attributes) -> Span:
    """The span of an utterance, which begins now within the request that asks for it; :meth:`Span.end` must follow."""
    if not available:
        return Span()
    return Span(trace.get_tracer(SCOPE).start_span("speak", attributes=attributes))


def _nanoseconds(at: float) -> int:
    return time.time_ns() - int((time.monotonic() - at) * 1e9)
