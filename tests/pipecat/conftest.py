"""Pipecat's own log is left out: it writes a page for each test."""

import pytest
from loguru import logger

logger.remove()


@pytest.fixture(autouse=True)
def _first_calls_are_for_streams(unrehearsed: None) -> None:
    """Fakes are scripted by the number of a call: the first one is a stream's."""
