"""The engine whose work is done in other processes, as callers see it."""

import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from megatalker.checkpoint import Checkpoint
from megatalker.engine.aligned_words import open_paces
from megatalker.engine.speech.marked_chunks import WatermarkStage
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.outputs import Continuation, EngineMetrics
from megatalker.engine.speech.request import RequestChecker, TalkerLimits
from megatalker.engine.stream import SpeechStream, require_process
from megatalker.errors import MegatalkerError
from megatalker.plugins import BackendRegistry
from megatalker.serving.processes.client import EngineClient
from megatalker.serving.processes.handle import EngineHandle
from megatalker.serving.processes.messages import Begin, Segment
from megatalker.serving.processes.session import ProcessSession
from megatalker.serving.processes.supervisor import EngineSupervisor
from megatalker.settings import Settings


class ProcessEngine:
    """An engine whose backends run in processes of their own, one for each device. Thread-safe.

    Used like :class:`megatalker.engine.Engine`, except that ``CapacityError`` comes from the stream. Requests are
    checked and tokenised in the caller's process. Where an engine process dies, its utterances go on in another one,
    or in the one that takes its place, with the codes that they would have had: nobody hears it.
    """

    def __init__(
        self,
        settings: Settings,
        checkpoint: Checkpoint,
        client: EngineClient,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        """Use the processes of this client, and call ``end`` once it is closed; raises as :meth:`open`."""
        self.settings, self.checkpoint = settings, checkpoint
        self._process = os.getpid()
        self._requests, self._client = RequestChecker(settings, checkpoint), client
        self._closer = weakref.finalize(self, _close, client, end)
        try:
            self._watermark = WatermarkStage(settings.watermark)
            self._paces = open_paces(settings.aligner, settings.language)
            client.wait_until_open()
        except BaseException:
            self._closer()
            raise

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        checkpoint: Checkpoint | None = None,
        devices: Sequence[str] | None = None,
        registry: Callable[[], BackendRegistry] | None = None,
        **overrides: Any,
    ) -> Self:
        """Start the processes, and wait until each has loaded its backends.

        Args:
            settings: as for :meth:`megatalker.engine.Engine.open`.
            checkpoint: already open; by default ``settings.checkpoint``. Each process opens its folder.
            devices: one process each; by default one, on ``settings.device``.
            registry: a function of a module that makes the registry of backends, in each process; by default the
                installed ones.
            **overrides: single settings.

        Raises:
            MegatalkerError: as :meth:`megatalker.engine.Engine.open`, or ``BackendFaultError`` where a process ended.
        """
        settings = Settings.given(settings, overrides)
        if checkpoint is None:
            checkpoint = Checkpoint.open(settings.checkpoint)
        places = [settings.device] if devices is None else list(devices)
        supervisor = EngineSupervisor(settings, (checkpoint.folder, checkpoint.name), places, registry)
        client = EngineClient(supervisor.address, supervisor.folder, 0, settings)
        return cls(settings, checkpoint, client, supervisor.close)

    def speak(self, text: str | None, options: SpeechOptions | None = None, **changes: Any) -> SpeechStream:
        """Begin to speak, like :meth:`megatalker.engine.Engine.speak`; the stream raises ``CapacityError``."""
        return self.speak_for("", text, options, **changes)

    def speak_for(
        self,
        owner: str,
        text: str | None,
        options: SpeechOptions | None = None,
        *,
        after: Continuation | None = None,
        **changes: Any,
    ) -> SpeechStream:
        """Begin to speak, like :meth:`megatalker.engine.Engine.speak_for`; the stream raises ``CapacityError``."""
        self._require_serving()
        now, asked = time.monotonic(), SpeechOptions.of(options, changes)
        request, segmenter = self._requests.check(text, asked, self._limits, after)
        segments = [Segment(one.text, one.ids, one.voice, one.lead) for one in segmenter.coming]
        if (tail := segmenter.tail) is not None:
            segments.append(Segment("", [], lead=tail))
        begin = Begin(
            id=self._client.next_number(),
            owner=owner,
            request=replace(request, return_codes=True),
            clean=asked.clean_text,
            segments=None if text is None else segments,
            word_times=asked.word_times,
            after=after,
            suspect=False,
        )
        session = ProcessSession(
            begin,
            return_codes=asked.return_codes,
            requested_at=now,
            backend=(self.backend, self.codec),
            max_untaken_s=self.settings.max_untaken_s,
            on_cancel=self._client.cancel,
            on_text=self._client.note_text,
        )
        session.progress.text_chars = len(text or "")
        checker, words = self._requests.text_checker(text, asked), self._paces.clock(asked, segmenter.whole)
        self._client.begin(session)
        return SpeechStream(
            session,
            checker,
            keep_alive=self,
            words=words,
            after=after,
            watermark=self._watermark,
            shaped=self._requests.takes_prosody(asked),
        )

    def check(self, options: SpeechOptions | None = None, **changes: Any) -> None:
        """Whether text that arrives bit by bit could be spoken like this; as :meth:`megatalker.engine.Engine.check`."""
        self._require_serving()
        self._requests.check(None, SpeechOptions.of(options, changes), self._limits)

    def warmup(self) -> None:
        """Warm all engines up; those that take the place of dead ones are warmed up, too. Blocks.

        Raises:
            MegatalkerError: as :meth:`megatalker.engine.Engine.warmup`.
        """
        require_process(self._process)
        self._client.warmup()

    def metrics(self) -> EngineMetrics:
        """Counters of all engines together."""
        return self._client.metrics()

    @property
    def processes(self) -> list[EngineHandle]:
        """The engine processes."""
        return self._client.handles

    @property
    def backend(self) -> str:
        """Name of the talker backend in use."""
        status = self._client.status
        return self.settings.backend if status is None else status.metrics.backend

    @property
    def codec(self) -> str:
        """Name of the codec in use."""
        status = self._client.status
        return self.settings.codec if status is None else status.metrics.codec

    @property
    def failure(self) -> MegatalkerError | None:
        """Why every request is refused: closed, or no engine can be kept up. ``None`` while it serves."""
        return self._client.failure

    def close(self) -> None:
        """End all streams with ``EngineClosedError``, and the processes. May be called again."""
        if self._process == os.getpid():
            self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _limits(self) -> TalkerLimits:
        assert self._client.status is not None, "each engine reports before it is open"
        return self._client.status.limits

    def _require_serving(self) -> None:
        require_process(self._process)
        self._client.require_serving()


def _close(client: EngineClient, end: Callable[[], object]) -> None:
    client.close()
    end()
