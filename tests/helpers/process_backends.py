"""Registries of fake backends for engine processes, each made by a function that such a process finds by its name."""

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fake_backend import CAPABILITIES, Behaviour, Fakes
from megatalker.interfaces import StreamRequest
from megatalker.plugins import BackendRegistry

POISON = 666
"""Seed of the request at which every engine process dies."""
ABSENT = "TEST_OF_MEGATALKER_ABSENT"
"""Names a file; while it is there, an engine process ends when it loads its talker."""
FRAME_S = 0.004


def paced() -> BackendRegistry:
    """Speech of 60 frames, a little faster than real ones are made."""
    return _registry(Behaviour(frames=60, on_decode=_pace, on_load=_refuse_to_start))


def endless() -> BackendRegistry:
    """Speech that never ends by itself."""
    capabilities = replace(CAPABILITIES, max_positions=10**9)
    return _registry(Behaviour(frames=None, on_decode=_pace, capabilities=capabilities))


def poisoned() -> BackendRegistry:
    """The speech of :func:`paced`; one request kills the process that reads it."""
    return _registry(Behaviour(frames=60, on_decode=_pace, on_prefill=_die))


def telling_its_interval() -> BackendRegistry:
    """A talker that logs how long a thread waits for Python's lock."""

    def tell(_request: StreamRequest) -> None:
        logging.getLogger("megatalker").warning("interval: %g s", sys.getswitchinterval())

    return _registry(Behaviour(frames=3, on_prefill=tell))


def losing_its_device() -> BackendRegistry:
    """The speech of :func:`paced`, until the file of :data:`ABSENT` appears: the process that takes it away first has
    no device any more.
    """
    lost = False

    def need_device(_call: object = None) -> None:
        nonlocal lost
        file = Path(os.environ[ABSENT])
        if not lost and file.exists():
            with suppress(FileNotFoundError):
                file.unlink()
                lost = True
        if lost:
            raise RuntimeError("the device is gone")
        _pace(0)

    behaviour = Behaviour(frames=60, on_decode=need_device, on_prefill=need_device, on_load=need_device)
    return _registry(behaviour)


def broken() -> BackendRegistry:
    """A talker that cannot be loaded."""

    def fail() -> None:
        raise RuntimeError("no such device")

    return _registry(Behaviour(on_load=fail))


def _registry(behaviour: Behaviour) -> BackendRegistry:
    return Fakes(talkers={"fake": behaviour}).registry


def _pace(_call: int) -> None:
    time.sleep(FRAME_S)


def _die(request: StreamRequest) -> None:
    if request.sampling.seed == POISON:
        os.kill(os.getpid(), signal.SIGKILL)


def _refuse_to_start() -> None:
    if Path(os.environ.get(ABSENT, "/nowhere")).exists():
        os._exit(3)
