"""Metrics for Prometheus, and a log of events with fields, as text or as JSON, for the operator of a server."""

import json
import logging
import time
from collections.abc import Iterator
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from megatalker.engine import SpeechStream
from megatalker.serving.background import BackgroundHealth
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.server.callers import known_request
from megatalker.serving.server.lazy_engine import ServedEngine

Route = Literal["http", "websocket"]

TTFC_BUCKETS_S = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
WAIT_BUCKETS_S = (0.001, 0.002, 0.005, *TTFC_BUCKETS_S, 20.0, 60.0)
RTF_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)


class Metrics:
    """Metrics of one server, in a registry of their own."""

    def __init__(self, engine: ServedEngine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        self.background = BackgroundHealth()
        """Health of this server's work in the background."""
        self.registry.register(_BackgroundCollector(self.background))
        self._ended = Counter(
            "megatalker_utterances",
            "Utterances that ended, by reason.",
            ["route", "finish_reason"],
            registry=self.registry,
        )
        self._refused = Counter(
            "megatalker_refusals",
            "Requests and messages answered with an error, by error.",
            ["route", "error"],
            registry=self.registry,
        )
        self._ttfc = Histogram(
            "megatalker_ttfc_seconds",
            "Request accepted until the first chunk was ready to send.",
            ["route"],
            buckets=TTFC_BUCKETS_S,
            registry=self.registry,
        )
        self._queue_wait = Histogram(
            "megatalker_queue_wait_seconds",
            "Request accepted until its prompt was read.",
            ["route"],
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._chunk_gap = Histogram(
            "megatalker_chunk_gap_seconds",
            "From one chunk to the next, where the engine waited for neither text nor consumer.",
            ["route"],
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._rtf = Histogram(
            "megatalker_rtf",
            "Time from request to last chunk over duration of speech, for text given at once.",
            ["route"],
            buckets=RTF_BUCKETS,
            registry=self.registry,
        )
        self._unsaid = Counter(
            "megatalker_unsaid_characters",
            "Characters of texts that were left out, estimated.",
            ["route"],
            registry=self.registry,
        )
        self._audio = Counter("megatalker_audio_seconds", "Speech made.", ["route"], registry=self.registry)
        self._underruns = Counter(
            "megatalker_underruns",
            "Times playback without a buffer would have run dry.",
            ["route"],
            registry=self.registry,
        )
        self.connections = Gauge("megatalker_connections", "WebSocket connections now.", registry=self.registry)

    def ended(self, stream: SpeechStream, route: Route, *, whole_text: bool) -> None:
        """An utterance is over. Where its text arrived bit by bit, RTF would mostly tell how fast it was written."""
        facts = stream.facts()
        self._ended.labels(route, facts.finish_reason or "cancelled").inc()
        self._audio.labels(route).inc(facts.audio_s)
        self._underruns.labels(route).inc(facts.underruns)
        self._unsaid.labels(route).inc(facts.unsaid_chars)
        if facts.ttfc_s is not None:
            self._ttfc.labels(route).observe(facts.ttfc_s)
        if facts.queue_wait_s is not None:
            self._queue_wait.labels(route).observe(facts.queue_wait_s)
        for gap in stream.chunk_gaps_s:
            self._chunk_gap.labels(route).observe(gap)
        if facts.rtf is not None and whole_text:
            self._rtf.labels(route).observe(facts.rtf)

    def refused(self, error: Exception, route: Route) -> None:
        """A request, or a message of a WebSocket, was answered with this error."""
        self._refused.labels(route, type(error).__name__).inc()


class _BackgroundCollector(Collector):
    def __init__(self, health: BackgroundHealth) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            "megatalker_background_failures", "Failures of work in the background.", labels=["work"]
        )
        troubled = GaugeMetricFamily(
            "megatalker_background_troubled", "Work in the background that fails now.", labels=["work"]
        )
        troubles = self._health.troubles()
        for name, count in self._health.failures().items():
            failures.add_metric([name], count)
            troubled.add_metric([name], int(name in troubles))
        yield failures
        yield troubled


class _EngineCollector(Collector):
    """Reads the engine's own counters when they are asked for."""

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        metrics = self._engine.metrics()
        for name, what, value in (
            ("streams", "Requests accepted by the engine.", metrics.streams),
            ("frames", "Frames decoded; one is 80 ms of speech.", metrics.frames),
            ("tokens", "Codes of those frames; their rate is tokens a second.", metrics.tokens),
            ("chunks", "Chunks handed out.", metrics.chunks),
            ("switches", "Streams moved to another backend.", metrics.switches),
            ("cancelled", "Streams cancelled.", metrics.cancelled),
            ("errors", "Streams that ended with an error.", metrics.errors),
            ("ticks", "Rounds of the engine's thread with something to do.", metrics.ticks),
            ("host_seconds", "Time of ticks outside of backends.", metrics.host_s),
            ("backend_seconds", "Time of ticks inside of backends.", metrics.backend_s),
            ("begun", "Requests that were prefilled.", metrics.begun),
            ("queue_wait_seconds", "Time that those waited for their prefill.", metrics.queue_wait_s),
            ("decode_calls", "Launches of frames.", metrics.decode_calls),
            ("decode_rows", "Streams of all launches of frames.", metrics.decode_rows),
            ("lent", "Times that a stream lent its row to another.", metrics.lent),
            ("repeated", "Segments spoken once more, since their speech was too short.", metrics.repeated),
            ("incomplete", "Streams that left out some of their text.", metrics.incomplete),
        ):
            yield CounterMetricFamily(f"megatalker_engine_{name}", what, value=value)
        yield GaugeMetricFamily("megatalker_engine_active", "Streams that hold rows of the backend.", metrics.active)
        yield GaugeMetricFamily(
            "megatalker_engine_waiting", "Streams that have work and wait for rows.", metrics.waiting
        )
        if metrics.sustainable is not None:
            what = "Streams that can play at a time without a gap, by what launches have cost lately."
            yield GaugeMetricFamily("megatalker_engine_sustainable_streams", what, metrics.sustainable)
        yield GaugeMetricFamily("megatalker_engine_idle", "Streams that are open and have no work.", metrics.idle)
        for name, what, state in (
            ("preparing", "The backend prepares something in the background.", metrics.preparing),
            ("unprepared", "The backend goes on without what it had prepared.", metrics.unprepared),
        ):
            yield GaugeMetricFamily(f"megatalker_engine_{name}", what, value=int(state is not None))
        backends = {"backend": metrics.backend, "codec": metrics.codec}
        yield InfoMetricFamily("megatalker_engine", "Backends in use.", backends)
        faulty = GaugeMetricFamily("megatalker_engine_faulty", "Backends given up.", labels=["backend"])
        for name in metrics.faulty:
            faulty.add_metric([name], 1)
        yield faulty


access = logging.getLogger("megatalker.serving.access")
"""One line for each request, each connection and each utterance."""


def log_event(event: str, *, quiet: bool = False, **fields: object) -> None:
    """An event with its fields; fields that are ``None`` are left out. ``quiet``: at level DEBUG."""
    known = {name: value for name, value in fields.items() if value is not None}
    access.log(logging.DEBUG if quiet else logging.INFO, event, extra={"fields": known})


def log_ignored(names: tuple[str, ...]) -> None:
    """Note which fields of a request mean nothing here."""
    if names:
        log_event("ignored", fields=", ".join(told_names(names)))


def configure_logging(log_format: Literal["text", "json"]) -> None:
    """Everything that this process logs goes to standard error in this format, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: message key=value ...``; a value with blanks or control characters is quoted."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the library
        pairs = (f"{name}={_plain(value)}" for name, value in _fields(record).items())
        return " ".join((super().formatMessage(record), *pairs))


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (UTC), ``level``, ``logger``, ``message`` and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of an event, and the request that is being served, wherever a line comes from."""
    fields: dict[str, object] = dict(getattr(record, "fields", {}))
    call = known_request()
    if call is not None:
        fields.setdefault("request_id", call.id)
    return fields


def _plain(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
