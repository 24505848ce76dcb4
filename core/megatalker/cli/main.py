"""Assembles the commands, and turns the engine's errors into one readable line."""

import logging
import sys

import typer
from rich.logging import RichHandler

from megatalker.cli.backends import backends
from megatalker.cli.bench.command import bench
from megatalker.cli.console import stderr
from megatalker.cli.inspect import inspect
from megatalker.cli.say import say
from megatalker.cli.serve import serve
from megatalker.errors import MegatalkerError

app = typer.Typer(
    name="megatalker",
    help="Streaming speech from Qwen3-TTS, with interchangeable decode backends.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(say)
app.command()(backends)
app.command()(inspect)
app.command()(bench)
app.command()(serve)


@app.callback()
def main(verbose: bool = typer.Option(False, "--verbose", "-v", help="Log what the engine decides.")) -> None:
    """Set up logging before any command."""
    handler = RichHandler(console=stderr, show_path=False, show_time=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.getLogger("megatalker").setLevel(logging.INFO if verbose else logging.WARNING)


def run() -> None:
    """Entry point of the ``megatalker`` script."""
    try:
        app()
    except MegatalkerError as error:
        stderr.print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
        stderr.print(str(error), markup=False, highlight=False)
        sys.exit(1)
