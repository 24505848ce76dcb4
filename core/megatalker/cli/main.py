"""Assembles the commands, and turns the engine's errors into one readable line.

The modules of the commands import what is light only, so that help and errors in arguments answer at once. What needs
torch is imported by a command that runs.
"""

import logging
import sys
from typing import Annotated

import typer

from megatalker.cli.backends import backends
from megatalker.cli.bench.command import bench
from megatalker.cli.bench.load_command import load
from megatalker.cli.bench.others import add_others
from megatalker.cli.console import stderr
from megatalker.cli.detect import detect
from megatalker.cli.inspect import inspect
from megatalker.cli.keys import keys
from megatalker.cli.lexicon import lexicon
from megatalker.cli.mcp import mcp
from megatalker.cli.read.command import batch, read
from megatalker.cli.reload import reload
from megatalker.cli.say.command import say
from megatalker.cli.serve import serve
from megatalker.cli.status import PACKAGES
from megatalker.cli.verify.command import verify
from megatalker.cli.voices import voices
from megatalker.engine.openmp import let_threads_sleep
from megatalker.errors import MegatalkerError

app = typer.Typer(
    name="megatalker",
    help="Streaming speech from Qwen3-TTS, with interchangeable decode backends.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(say)
app.command()(read)
app.command()(batch)
app.command()(backends)
app.command()(inspect)
app.command()(detect)
app.command()(verify)
benchmarks = typer.Typer(add_completion=False)
benchmarks.callback(invoke_without_command=True)(bench)
add_others(benchmarks)
app.add_typer(benchmarks, name="bench")
app.command()(load)
app.command()(serve)
app.command()(mcp)
app.command()(reload)
app.add_typer(keys, name="keys")
app.add_typer(lexicon, name="lexicon")
app.add_typer(voices, name="voices")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"megatalker {version('megatalker')}")
        raise typer.Exit


@app.callback()
def main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the engine decides.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Set up logging before any command."""
    from rich.logging import RichHandler

    handler = RichHandler(console=stderr, show_path=False, show_time=False)
    handler.setLevel(logging.INFO if verbose else logging.WARNING)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO)  # the status line shows them; without --verbose nothing else


def run() -> None:
    """Entry point of the ``megatalker`` script."""
    let_threads_sleep()
    try:
        app()
    except MegatalkerError as error:
        stderr.print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
        stderr.print(str(error), markup=False, highlight=False)
        sys.exit(1)
