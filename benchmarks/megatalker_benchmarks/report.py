"""Arguments of the programs in this package, and their results: JSON, printed and if asked for kept in a file."""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from megatalker.cli.bench.report import as_text, command_line, environment
from megatalker.cli.options import prepare_file
from megatalker.errors import InvalidRequestError, MegatalkerError


def whole(least: int = 1) -> Callable[[str], int]:
    """Return the ``type`` of an argument: an integer from ``least`` on."""

    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from {least} on")
        return found

    return read


def number(*, zero: bool = False) -> Callable[[str], float]:
    """Return the ``type`` of an argument: a finite number above 0, or 0 as well."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not (0 < found < math.inf or (zero and found == 0)):
            raise argparse.ArgumentTypeError(f"{text!r}, expected a number {'from 0 on' if zero else 'above 0'}")
        return found

    return read


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json FILE``, for :func:`hand_out`."""
    parser.add_argument("--json", type=_writable, help="write the result into this file, too")


def hand_out(found: Mapping[str, Any], file: Path | None) -> None:
    """Print ``found`` with the command and the environment, and keep the same in ``file``."""
    sys.stdout.write(_text(found))
    if file is not None:
        keep(found, file)


def keep(found: Mapping[str, Any], file: Path) -> None:
    """Write ``found`` with the command and the environment."""
    file.write_text(_text(found), encoding="utf-8")


def _writable(file: str) -> Path:
    try:
        prepare_file(Path(file))
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(file)


def _text(found: Mapping[str, Any]) -> str:
    return as_text({"command": command_line(), "environment": environment(), **found})


def tabulate(
    run: Callable[[], Sequence[dict[str, Any]]],
    table: Callable[[Sequence[dict[str, Any]]], Table],
    path: Path | None,
    **facts: Any,
) -> int:
    """Print a table of the rows that ``run`` returns, and keep them with these facts where a path is given; returns the
    exit status, 1 where an error of ours was reported.
    """
    try:
        rows = run()
    except MegatalkerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    Console().print(table(rows))
    if path is not None:
        keep({**facts, "rows": rows}, path)
    return 0
