"""Metrics for Prometheus, and a log of events with fields, for the operator of a server."""

import logging
import os
from collections.abc import Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from megatalker.engine import SpeechStream
from megatalker.serving.background import BackgroundHealth
from megatalker.serving.protocol.leniency import told_names
from megatalker.serving.server.defaults import SHARED_METRICS
from megatalker.serving.server.lazy_engine import ServedEngine

Route = Literal["http", "websocket", "wyoming"]


TTFC_BUCKETS_S = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
WAIT_BUCKETS_S = (0.001, 0.002, 0.005, *TTFC_BUCKETS_S, 20.0, 60.0)
RTF_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)


class Metrics:
    """Metrics of one server, in a registry of their own."""

    def __init__(self, engine: ServedEngine) -> None:
        self.registry = CollectorRegistry()
        """The content of ``GET /metrics``. Front ends of one server count together, in files
        (https://prometheus.github.io/client_python/multiprocess)."""
        self.registry.register(_EngineCollector(engine))
        own = self.registry
        if SHARED_METRICS in os.environ:
            MultiProcessCollector(self.registry)  # type: ignore[no-untyped-call]
            own = CollectorRegistry()
        self._failures = Counter(
            "megatalker_background_failures", "Failures of work in the background.", ["work"], registry=own
        )
        self._troubled = Gauge(
            "megatalker_background_troubled",
            "Work in the background that fails now.",
            ["work"],
            registry=own,
            multiprocess_mode="livemax",
        )
        self.background = BackgroundHealth(on_change=self._note_background)
        """Health of this server's work in the background."""
        self._ended = Counter(
            "megatalker_utterances",
            "Utterances that ended, by reason.",
            ["route", "finish_reason"],
            registry=own,
        )
        self._refused = Counter(
            "megatalker_refusals",
            "Requests and messages answered with an error, by error.",
            ["route", "error"],
            registry=own,
        )
        self._ttfc = Histogram(
            "megatalker_ttfc_seconds",
            "Request accepted until the first chunk was ready to send.",
            ["route"],
            buckets=TTFC_BUCKETS_S,
            registry=own,
        )
        self._queue_wait = Histogram(
            "megatalker_queue_wait_seconds",
            "Request accepted until its prompt was read.",
            ["route"],
            buckets=WAIT_BUCKETS_S,
            registry=own,
        )
        self._chunk_gap = Histogram(
            "megatalker_chunk_gap_seconds",
            "From one chunk to the next, where the engine waited for neither text nor consumer.",
            ["route"],
            buckets=WAIT_BUCKETS_S,
            registry=own,
        )
        self._rtf = Histogram(
            "megatalker_rtf",
            "Time from request to last chunk over duration of speech, for text given at once.",
            ["route"],
            buckets=RTF_BUCKETS,
            registry=own,
        )
        self._unsaid = Counter(
            "megatalker_unsaid_characters",
            "Characters of texts that were left out, estimated.",
            ["route"],
            registry=own,
        )
        self._audio = Counter("megatalker_audio_seconds", "Speech made.", ["route"], registry=own)
        self._underruns = Counter(
            "megatalker_underruns",
            "Times playback without a buffer would have run dry.",
            ["route"],
            registry=own,
        )
        self.connections = Gauge(
            "megatalker_connections", "WebSocket connections now.", registry=own, multiprocess_mode="livesum"
        )
        self.tasks = Gauge(
            "megatalker_tasks", "Tasks of the servers' event loops.", registry=own, multiprocess_mode="livesum"
        )

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

    def _note_background(self, work: str, failed: bool, troubled: bool) -> None:
        self._failures.labels(work).inc(int(failed))
        self._troubled.labels(work).set(int(troubled))


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
