"""The source of a session's speech: a shared engine of this process, the caller's engine, or a server."""

import logging
from dataclasses import dataclass

import megatalker
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.errors import CapacityError, SettingsError
from megatalker.serving.protocol.asking import shown_url
from megatalker.serving.shared_engines.pool import GONE, EnginePool, Lease

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeasedEngine:
    """A lease, and the engine settings it was taken for; ``None``: a server's."""

    lease: Lease
    settings: megatalker.Settings | None


class Source:
    """Finds the engine that a session asks for. Holds at most one lease at a time.

    Raises:
        SettingsError: more than one of ``engine_settings``, ``engine`` and ``server_url`` is given; or none is, and
            environment or ``megatalker.toml`` hold something impossible.
    """

    def __init__(
        self,
        pool: EnginePool,
        engine_settings: megatalker.Settings | None,
        engine: SpeechEngine | None,
        server_url: str | None,
    ) -> None:
        choices = {"engine_settings": engine_settings, "engine": engine, "server_url": server_url}
        given = [name for name, choice in choices.items() if choice is not None]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} were given, expected at most one of them: each says who speaks")
        self._pool, self._engine, self._server_url = pool, engine, server_url
        self.settings: megatalker.Settings | None = None
        """Settings of the engine to begin with; ``None`` for a server, whose settings are its own."""
        if isinstance(engine, megatalker.Engine):
            self.settings = engine.settings
        elif engine is None and server_url is None:
            self.settings = megatalker.Settings.read() if engine_settings is None else engine_settings
        self.current: LeasedEngine | None = None

    def begin(self, backend: str | None = None, checkpoint: str | None = None) -> LeasedEngine:
        """The engine for these wishes, by default as :attr:`settings` say; the current one if they ask for no other.

        It may still be loading. What is found is the caller's to :meth:`adopt` or to leave.

        Raises:
            SettingsError: a server was asked for another backend or checkpoint.
        """
        changes = {"backend": backend, "checkpoint": checkpoint}
        target = self._target({name: value for name, value in changes.items() if value is not None})
        if self.current is not None and self.current.settings == target and not self.current.lease.failed:
            return self.current
        if self._engine is not None and target == self.settings:
            return LeasedEngine(self._pool.borrow(self._engine), target)
        if target is not None:
            return LeasedEngine(self._pool.begin(target), target)
        assert self._server_url is not None, "there are no settings because there is a server"
        return LeasedEngine(self._pool.begin_server(self._server_url), None)

    async def find(
        self, backend: str | None = None, checkpoint: str | None = None, *, warm: bool = True
    ) -> LeasedEngine:
        """Return what :meth:`begin` does, loaded and, unless ``warm`` is false, warm.

        Raises:
            MegatalkerError: it cannot be loaded; or a server was asked for another backend or checkpoint.
        """
        found = self.begin(backend, checkpoint)
        try:
            await (found.lease.warm() if warm else found.lease.loaded())
        except BaseException:
            if found is not self.current:
                found.lease.leave()
            raise
        return found

    async def find_checked(
        self, options: megatalker.SpeechOptions, backend: str | None = None, checkpoint: str | None = None
    ) -> LeasedEngine:
        """Return what :meth:`find` does, of an engine that could speak like this; raises as :func:`check`, too."""
        found = await self.find(backend, checkpoint)
        try:
            await check(found.lease, options)
        except BaseException:
            if found is not self.current:
                await found.lease.release()
            raise
        return found

    def adopt(self, found: LeasedEngine) -> Lease | None:
        """``found`` speaks from now on; returns the lease that is not needed any more, for the caller to release."""
        before, self.current = self.current, found
        return before.lease if before is not None and before is not found else None

    def give_up(self) -> Lease | None:
        """The current engine cannot speak any more: the next :meth:`find` gets a new one. As :meth:`adopt`."""
        before, self.current = self.current, None
        if before is None:
            return None
        before.lease.give_up()
        return before.lease

    def is_gone(self, error: BaseException) -> bool:
        """The engine that raised this is of this process, and no further request can succeed on it."""
        return isinstance(error, GONE) and self.settings is not None

    @property
    def replaceable(self) -> bool:
        """Another engine can take the place of one that is gone: it is not the caller's own."""
        return self._engine is None

    async def leave(self) -> None:
        """Give the engine back; waits until it is closed if nobody else uses it."""
        before, self.current = self.current, None
        if before is not None:
            await before.lease.release()

    def __str__(self) -> str:
        if self.settings is None:
            return "a remote engine" if self._server_url is None else f"the server at {shown_url(self._server_url)}"
        return f"checkpoint {self.settings.checkpoint!r} with backend {self.settings.backend!r}"

    def _target(self, changes: dict[str, str]) -> megatalker.Settings | None:
        if self.settings is not None:
            return self.settings.model_copy(update=changes)
        if changes:
            raise SettingsError(
                f"backend and checkpoint cannot be chosen here: {self} speaks with its own; leave them out, "
                "or start another server and pass its URL"
            )
        return None


async def check(lease: Lease, options: megatalker.SpeechOptions) -> None:
    """Ask the engine whether it could speak like this.

    Raises:
        MegatalkerError: as ``engine.check``. A server that is full says nothing.
    """
    try:
        await lease.check(options)
    except CapacityError:
        logger.debug("the server is too busy to say whether it could speak like this")
