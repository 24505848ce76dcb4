"""The checks of ``megatalker verify``: one checkpoint on one machine, held to the official package."""
