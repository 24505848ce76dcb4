"""``megatalker bench NAME``: measurements that other packages bring along, such as those of one kernel.

They register a function without arguments in the entry-point group ``megatalker.benchmarks``. It reads ``sys.argv`` as
a program of its own would, and may return an exit status.
"""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import typer

from megatalker.cli.programs import BENCHMARKS, imported


def add_others(app: typer.Typer) -> None:
    """Give ``app`` a command for each registered measurement; none is imported before it runs."""
    for entry in sorted(entry_points(group=BENCHMARKS), key=lambda entry: entry.name):
        passing_on = {"ignore_unknown_options": True, "allow_extra_args": True}
        about = f"{entry.module}; --help says what it takes."
        app.command(entry.name, help=about, context_settings=passing_on, add_help_option=False)(_program(entry))


def _program(entry: EntryPoint) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        program = imported(entry)
        sys.argv = [f"megatalker bench {entry.name}", *context.args]
        sys.exit(program())

    return run
