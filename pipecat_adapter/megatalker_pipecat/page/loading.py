"""Loads engines, and shows progress in the terminal and on the page."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import megatalker
from megatalker.cli.status import PACKAGES
from megatalker.serving.shared_engines.pool import Lease
from megatalker_pipecat.service import MegatalkerTTSService


async def load(settings: megatalker.Settings) -> Lease:
    """Load and warm up the engine that services with these settings share, and report it in the terminal.

    Raises:
        MegatalkerError: it cannot be loaded; the message says why.
    """
    _tell(f"loading checkpoint {settings.checkpoint!r}, backend {settings.backend!r} ...")
    began = time.monotonic()
    lease = await MegatalkerTTSService.preload(settings)
    assert isinstance(lease.engine, megatalker.Engine), "without a server's address, the engine is one of this process"
    _tell(f"backend {lease.engine.backend!r} is ready after {time.monotonic() - began:.1f} s")
    return lease


class LoadProgress(logging.Handler):
    """The newest INFO message of our packages, which says what they are about to do."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.doing = ""
        self._began = time.monotonic()

    @property
    def since_s(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self._began

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self.doing = record.getMessage()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block lasts."""
        loggers = [logging.getLogger(package) for package in PACKAGES]
        before = [logger.level for logger in loggers]
        for logger in loggers:
            logger.addHandler(self)
            logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.removeHandler(self)
                logger.setLevel(level)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command's output
