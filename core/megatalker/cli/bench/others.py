"""``megatalker bench NAME``: measurements of other packages, such as those of one kernel.

They register a function without arguments in the entry-point group ``megatalker.benchmarks``. It reads ``sys.argv`` as
a program of its own would, and may return an exit status. The first sentence of its module's docstring is what
``megatalker bench --help`` says about it.
"""

import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

import typer

from megatalker.cli.programs import BENCHMARKS, BRINGS_ALL, imported

_HEAD_BYTES = 1_000
"""Enough for the first sentence of a file."""


def add_others(app: typer.Typer) -> None:
    """Give ``app`` a command for each registered measurement; none is imported before it runs."""
    for entry in sorted(entry_points(group=BENCHMARKS), key=lambda entry: entry.name):
        passing_on = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(entry.name, help=_about(entry), context_settings=passing_on, add_help_option=False)(_program(entry))


def _program(entry: EntryPoint) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        sys.argv = [f"megatalker bench {entry.name}", *context.args]
        if "--help" in context.args or "-h" in context.args:
            _help(entry)
        else:
            sys.exit(imported(entry)())

    return run


def _help(entry: EntryPoint) -> None:
    """Show the options, even where packages that the measurement needs are missing, and name those.

    Raises:
        SystemExit: it has been shown.
    """
    from megatalker.cli.missing import stand_ins

    with stand_ins() as missing:
        try:
            missing.load(entry.load)()
        finally:
            if missing.packages:
                typer.echo(
                    f"\n{_about(entry)}\nnot installed here: {', '.join(sorted(missing.packages))}; {BRINGS_ALL}"
                )


def _about(entry: EntryPoint) -> str:
    """Return the first sentence of the module's docstring, without importing anything."""
    package, _, rest = entry.module.partition(".")
    try:
        found = find_spec(package)
        places = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
        file = next(path for place in places for path in _files(place, rest) if path.is_file())
        with file.open(encoding="utf-8") as source:
            head = source.read(_HEAD_BYTES)
    except (ImportError, OSError, StopIteration, UnicodeDecodeError, ValueError):
        return f"{entry.module}; --help says what it takes."
    sentence = re.match(r'\s*(?:r|R)?"""(.*?)(?:: ``megatalker bench|[.;:](?:\s|""")|""")', head, re.DOTALL)
    about = re.sub(r"\s+", " ", sentence[1]).replace("``", "") if sentence else ""
    return f"{about}." if about else f"{entry.module}; --help says what it takes."


def _files(package: Path, module: str) -> tuple[Path, Path]:
    inner = package.joinpath(*module.split(".")) if module else package
    return inner.with_suffix(".py"), inner / "__init__.py"
