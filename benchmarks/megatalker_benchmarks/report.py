"""What a program of this package found, printed as JSON and, where asked for, kept in a file."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatalker.cli.options import prepare_file
from megatalker.errors import InvalidRequestError


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json FILE``, for :func:`hand_out`."""
    parser.add_argument("--json", type=_writable, help="write the result into this file, too")


def hand_out(found: Mapping[str, Any], file: Path | None) -> None:
    """Print ``found`` with the command that found it, and keep the same in ``file``."""
    sys.stdout.write(_text(found))
    if file is not None:
        keep(found, file)


def keep(found: Mapping[str, Any], file: Path) -> None:
    """Write ``found`` with the command that found it."""
    file.write_text(_text(found), encoding="utf-8")


def _writable(file: str) -> Path:
    try:
        prepare_file(Path(file))
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(file)


def _text(found: Mapping[str, Any]) -> str:
    return json.dumps({"command": " ".join(sys.argv), **found}, indent=1) + "\n"
