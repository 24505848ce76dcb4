"""The ``megatalker`` command."""
