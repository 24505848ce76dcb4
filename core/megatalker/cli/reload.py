"""``megatalker reload``: other settings for a server that runs."""

import os
import signal
from typing import Annotated

import typer

from megatalker.cli.options import ConfigOption, given, read_settings


def reload(
    port: Annotated[int | None, typer.Option(help="Port of the server.", show_default="8000")] = None,
    config: ConfigOption = None,
) -> None:
    """Have a server of this machine read its settings again, without losing an utterance.

    Its log says when the new ones are in use, or what is wrong with them.
    """
    from megatalker.serving.server.pid_file import server_process

    settings = read_settings(config, server=given(port=port) or None)
    process = server_process(settings.server.port)
    os.kill(process, signal.SIGHUP)
    typer.echo(f"process {process} reads its settings again; its log says what comes of it")
