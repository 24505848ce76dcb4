"""The browser client, served by Pipecat's runner in place of its own, which loads code from the internet."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Self

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from pipecat.pipeline.worker import PipelineWorker

import megatalker
from megatalker.serving.background import start_task
from megatalker.serving.shared_engines.pool import Lease
from megatalker.voices import default_voice, list_languages, list_speakers
from megatalker_pipecat.page.controls import Controls
from megatalker_pipecat.page.gate import Gate
from megatalker_pipecat.page.loading import LoadProgress, load
from megatalker_pipecat.service import MegatalkerTTSService

CLIENT = Path(str(files("megatalker_pipecat.page") / "client"))


class Page:
    """The page, and the engines that the conversations behind it share.

    Args:
        engine_settings: of the engine that speaks; by default read from the environment and ``megatalker.toml``.
        listens: there is speech to text; otherwise the page asks for no microphone.
        answers: there is a language model; otherwise the agent says what it is told.
        backends: further talker backends that the page lets its user choose from. Each is an engine of its own,
            loaded with the first.
    """

    def __init__(
        self,
        engine_settings: megatalker.Settings | None = None,
        *,
        listens: bool = True,
        answers: bool = True,
        backends: Sequence[str] = (),
    ) -> None:
        self._settings = megatalker.Settings.read() if engine_settings is None else engine_settings
        self._backends = list(dict.fromkeys([self._settings.backend, *backends]))
        self._manners = {"listens": listens, "answers": answers}
        self._leases: list[Lease] = []
        self._progress = LoadProgress()
        self._failure: Exception | None = None

    @property
    def ready(self) -> bool:
        """Every engine is loaded; calls are taken."""
        return len(self._leases) == len(self._backends)

    @contextmanager
    def serve(self, app: FastAPI) -> Iterator[Self]:
        """Have ``app`` serve the page at ``/client/`` and what it needs to know at ``/agent``, for a server that runs
        in the block. The engines are loaded once it runs; until then all other requests are answered with 503.

        Routes added first win, so enter it before Pipecat's runner adds its own.

        Raises:
            MegatalkerError: at the end of the block, if the engines could not be loaded, for which the server stopped.
        """
        app.mount("/client", StaticFiles(directory=CLIENT, html=True))
        app.get("/agent")(self.about)
        app.add_middleware(Gate, is_open=lambda: self.ready)
        before = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            async with before(app), self._loaded():
                yield

        app.router.lifespan_context = lifespan
        yield self
        if self._failure is not None:
            raise self._failure

    async def attend(self, worker: PipelineWorker, speech: MegatalkerTTSService, body: object = None) -> None:
        """Have the page's buttons work in a conversation that is about to begin.

        Args:
            worker: runs it.
            speech: speaks in it.
            body: what the page asked for with the call, from the runner's arguments.

        Raises:
            InvalidRequestError: ``body`` asks for a voice, language or backend that is not offered.
        """
        controls = Controls(worker, speech, self.offered)
        if isinstance(body, Mapping) and "speak_as" in body:  # other clients may send anything
            await controls.speak_as(body["speak_as"])

    def offered(self) -> dict[str, list[str]]:
        """Return voices, languages and backends on offer. The page must be :attr:`ready`."""
        checkpoint = self._engines[0].checkpoint
        return {
            "voice": list_speakers(checkpoint),
            "language": list_languages(checkpoint),
            "backend": self._backends,
        }

    async def about(self) -> Mapping[str, object]:
        """Answer ``/agent``."""
        if not self.ready:
            return {"ready": False, "doing": self._progress.doing, "since_s": round(self._progress.since_s, 1)}
        engine, settings = self._engines[0], self._settings
        offered = self.offered()
        voice = settings.voice or (default_voice(engine.checkpoint).speaker if offered["voice"] else None)
        return {
            "ready": True,
            **self._manners,
            "checkpoint": engine.checkpoint.name,
            "backend": engine.backend,
            "backends": {name: engine.backend for name, engine in zip(self._backends, self._engines, strict=True)},
            "offered": offered,
            "chosen": {"voice": voice, "language": settings.language, "backend": settings.backend},
        }

    @property
    def _engines(self) -> list[megatalker.Engine]:
        return [lease.engine for lease in self._leases if isinstance(lease.engine, megatalker.Engine)]

    @asynccontextmanager
    async def _loaded(self) -> AsyncIterator[None]:
        loading = start_task(self._load(), "megatalker-load")
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.wait([loading])
            for lease in self._leases:
                await lease.release()

    async def _load(self) -> None:
        self._progress.doing = f"opening checkpoint {self._settings.checkpoint}"
        with self._progress.listening():
            try:
                for backend in self._backends:
                    self._leases.append(await load(self._settings.model_copy(update={"backend": backend})))
            except Exception as error:  # a stranger's backend may fail in any way
                self._failure = error
                signal.raise_signal(signal.SIGINT)  # the only way to stop the server that Pipecat's runner runs
