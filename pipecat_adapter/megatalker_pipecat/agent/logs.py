"""Sets log levels."""

import logging
import sys

from loguru import logger

from megatalker.cli.status import PACKAGES


def log_less(level: str) -> None:
    """Show Pipecat's log from ``level`` on; it shows everything until it is told otherwise."""
    logger.remove()
    logger.add(sys.stderr, level=level)


def log_decisions(wanted: bool) -> None:
    """Show what the engine decides while it loads, or only its warnings."""
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO if wanted else logging.WARNING)
