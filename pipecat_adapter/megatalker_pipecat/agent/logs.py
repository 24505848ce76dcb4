"""How much of Pipecat's log is shown."""

import sys

from loguru import logger


def log_less(level: str) -> None:
    """Show Pipecat's log from ``level`` on; it shows everything until it is told otherwise."""
    logger.remove()
    logger.add(sys.stderr, level=level)
