"""``megatalker serve``: the engine on the network."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megatalker.cli.options import (
    BackendOption,
    CheckpointOption,
    CodecOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    given,
    read_settings,
)
from megatalker.cli.status import PACKAGES
from megatalker.errors import UnsupportedError

if TYPE_CHECKING:
    from megatalker.settings import Settings


def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="Address to serve on; 0.0.0.0 is the network.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.", show_default="8000")] = None,
    voices_dir: Annotated[Path | None, typer.Option(help="Folder of voices, see `megatalker voices`.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model in requests.", show_default="checkpoint")] = None,
    max_streams: Annotated[int | None, typer.Option(help="Streams decoding at a time.", show_default="8")] = None,
    wyoming: Annotated[
        str | None, typer.Option(help="Serve Home Assistant, too, at an address such as tcp://0.0.0.0:10200.")
    ] = None,
    lazy: Annotated[bool | None, typer.Option("--lazy", help="Load the backends at the first request.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.", show_default="text")] = None,
    voice: Annotated[str | None, typer.Option(help="Voice of requests that name none.")] = None,
    checkpoint: CheckpointOption = None,
    backend: BackendOption = None,
    codec: CodecOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve speech: POST /v1/audio/speech as OpenAI does, and a WebSocket at /v1/speak."""
    try:
        from megatalker.serving.server.address import bind, bind_wyoming
        from megatalker.serving.server.defaults import served_settings
        from megatalker.serving.server.logs import configure_logging
        from megatalker.serving.server.supervisor import ServerSupervisor
    except ImportError as error:
        raise UnsupportedError(f"cannot serve: {error.name} is missing; pip install 'megatalker[server]'") from error
    from megatalker.settings import CONFIG_FILE

    own = given(
        host=host, port=port, wyoming=wyoming, voices_dir=voices_dir, model=model, lazy=lazy, log_format=log_format
    )

    def read() -> "Settings":
        return served_settings(
            read_settings(
                config,
                checkpoint=checkpoint,
                backend=backend,
                codec=codec,
                device=device,
                dtype=dtype,
                voice=voice,
                max_streams=max_streams,
                server=own or None,
            )
        )

    settings = read()
    configure_logging(settings.server.log_format)
    if not context.find_root().params.get("verbose"):  # what runs, and requests; not all that was decided on the way
        for package in PACKAGES:
            logging.getLogger(package).setLevel(logging.WARNING)
        logging.getLogger("megatalker.serving").setLevel(logging.INFO)
    with bind(settings.server) as bound, bind_wyoming(settings.server) or nullcontext() as wyoming_bound:
        ServerSupervisor(settings, read, bound, config or Path(CONFIG_FILE), wyoming_bound).run()
