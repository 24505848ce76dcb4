"""Programs that other packages bring along: entry points, none of which is imported before it runs."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from megatalker.errors import UnsupportedError

PROGRAMS = "megatalker.programs"
BENCHMARKS = "megatalker.benchmarks"
BRINGS_ALL = "install what it needs (pip install 'megatalker[dev]' brings everything)"


def load_program(name: str) -> Callable[..., Any]:
    """Return the program that is registered under this name in the group :data:`PROGRAMS`.

    Raises:
        UnsupportedError: nothing is, or what it imports is missing.
    """
    for entry in entry_points(group=PROGRAMS, name=name):
        return imported(entry)
    raise UnsupportedError(
        f"no installed package brings the program {name!r} along (an entry point in the group {PROGRAMS!r}); "
        "install megatalker again"
    )


def imported(entry: EntryPoint) -> Callable[..., Any]:
    """The program behind an entry point.

    Raises:
        UnsupportedError: what it imports is missing.
    """
    try:
        program: Callable[..., Any] = entry.load()
    except ImportError as error:
        raise UnsupportedError(f"cannot run {entry.name!r}: {error.name or error} is missing; {BRINGS_ALL}") from error
    return program
