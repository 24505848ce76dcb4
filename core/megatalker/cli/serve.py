"""``megatalker serve``: the engine on the network."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Annotated

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

logger = logging.getLogger("megatalker.serving.server")


def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="Address to serve on; 0.0.0.0 is the network.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.", show_default="8000")] = None,
    voices_dir: Annotated[Path | None, typer.Option(help="Folder of voices, see `megatalker voices`.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model in requests.", show_default="checkpoint")] = None,
    max_streams: Annotated[int | None, typer.Option(help="Streams decoding at a time.", show_default="8")] = None,
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
    from megatalker.checkpoint import Checkpoint
    from megatalker.checkpoint.hub import download_bar
    from megatalker.settings import CONFIG_FILE

    try:
        from megatalker.serving.server.lazy_engine import LazyEngine, served_settings
        from megatalker.serving.server.process import TalkServer, bind
        from megatalker.serving.server.telemetry import configure_logging
    except ImportError as error:
        raise UnsupportedError(f"cannot serve: {error.name} is missing; pip install 'megatalker[server]'") from error
    own = given(host=host, port=port, voices_dir=voices_dir, model=model, lazy=lazy, log_format=log_format)
    settings = served_settings(
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
    configure_logging(settings.server.log_format)
    if not context.find_root().params.get("verbose"):  # what runs, and requests; not all that was decided on the way
        for package in PACKAGES:
            logging.getLogger(package).setLevel(logging.WARNING)
        logging.getLogger("megatalker.serving").setLevel(logging.INFO)
    with bind(settings.server) as bound:
        with download_bar() as progress:
            opened = Checkpoint.open(settings.checkpoint, progress=progress)
        server = TalkServer(LazyEngine(settings, opened), settings.server, bound, config or Path(CONFIG_FILE))
        when = "at the first request" if settings.server.lazy else "now"
        logger.info("listening at %s, loading %s", server.url, when)
        with suppress(KeyboardInterrupt):  # after the server has stopped in good order
            server.run()
    if server.failure is not None:
        raise server.failure
