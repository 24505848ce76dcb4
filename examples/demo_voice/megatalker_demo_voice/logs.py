"""Lines to the screen and to a file."""

import time
from collections.abc import Callable
from pathlib import Path


def logger(path: Path) -> Callable[[str], None]:
    """Appends each line to ``path``, with the seconds since this call, and prints it at once."""
    started = time.monotonic()

    def log(line: str) -> None:
        stamped = f"[{time.monotonic() - started:7.1f}] {line}"
        print(stamped, flush=True)  # noqa: T201 - progress of a command
        with path.open("a", encoding="utf-8") as file:
            file.write(stamped + "\n")

    return log
