"""Puts an engine or a server under load, and measures what emulated listeners hear; the ``megatalker load`` command."""
