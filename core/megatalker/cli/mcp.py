"""``megatalker mcp``: tools for assistants, over standard input and output."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    read_settings,
)
from megatalker.errors import UnsupportedError


def mcp(
    url: Annotated[
        str | None, typer.Option(help="Speak through this megatalker server, such as http://localhost:8000.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="The server's key.", envvar="MEGATALKER_API_KEY", show_envvar=True)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the files of speech.", show_default="a temporary one")
    ] = None,
    voices_dir: Annotated[
        Path | None, typer.Option(help="Folder of voices.", show_default="setting server.voices_dir, or in --out")
    ] = None,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve the tools speak, list_voices and clone_voice to an assistant (Model Context Protocol, stdio)."""
    try:
        from megatalker.cli.mcp_tools import LocalVoices, ServerVoices, SpeechTools, make_server
    except ImportError as error:
        raise UnsupportedError(
            f"tools cannot be served: {error.name} is missing; pip install 'megatalker[mcp]'"
        ) from error
    folder = Path(tempfile.mkdtemp(prefix="megatalker-")) if out is None else out
    if url is not None:
        from megatalker.serving.client import RemoteEngine

        with RemoteEngine(url, api_key=api_key) as remote:
            make_server(SpeechTools(remote, ServerVoices(url, api_key), folder)).run("stdio")
        return
    from megatalker.checkpoint import Checkpoint
    from megatalker.engine import Engine

    settings = read_settings(config, checkpoint=checkpoint, backend=backend, codec=codec, device=device)
    opened = Checkpoint.open(settings.checkpoint)
    voices = LocalVoices(opened, settings, voices_dir or settings.server.voices_dir or folder / "voices")
    with Engine.open(settings, checkpoint=opened) as engine:
        make_server(SpeechTools(engine, voices, folder)).run("stdio")
