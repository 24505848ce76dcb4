"""Pipecat's own log is left out: it writes a page for each test."""

from loguru import logger

logger.remove()
