"""What tests of the client and of the server share."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from client_stage import Pair
from fake_backend import Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.serving.client import RemoteEngine
from serving import Served, Server, serving


@pytest.fixture
def connect(tiny_custom_voice: Checkpoint) -> Iterator[Pair]:
    with ExitStack() as stack:

        def connector(*fakes: Fakes, **settings: Any) -> tuple[Served, RemoteEngine]:
            served = stack.enter_context(serving(tiny_custom_voice, *fakes, **settings))
            return served, stack.enter_context(RemoteEngine(served.url))

        yield connector


@pytest.fixture
def serve(tiny_custom_voice: Checkpoint) -> Iterator[Server]:
    with ExitStack() as stack:
        yield lambda *fakes, **settings: stack.enter_context(serving(tiny_custom_voice, *fakes, **settings))
