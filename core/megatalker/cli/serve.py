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
from megatalker.errors import UnsupportedError

logger = logging.getLogger("megatalker.serving.server")

MAX_UNTAKEN_S = 20.0
"""Where the settings say nothing: slow clients should cost no memory."""
MAX_WAIT_S = 30.0
"""Where the settings say nothing: nobody listens to a silence of this length."""


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to serve on; 0.0.0.0 is the network.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.", show_default="8000")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Speak only for those who send it; better set in the environment.")
    ] = None,
    voices: Annotated[Path | None, typer.Option(help="Folder of voice files, served by name.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model in requests.", show_default="checkpoint")] = None,
    max_streams: Annotated[int | None, typer.Option(help="Streams decoding at a time.", show_default="8")] = None,
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
    from megatalker.engine import Engine

    try:
        from megatalker.serving.server.running import TalkServer, bind
    except ImportError as error:
        raise UnsupportedError(f"cannot serve: {error.name} is missing; pip install 'megatalker[server]'") from error
    own = given(host=host, port=port, api_key=api_key, voices=voices, model=model)
    settings = read_settings(
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
    unsaid = {"max_untaken_s": MAX_UNTAKEN_S, "max_wait_s": MAX_WAIT_S}
    unsaid = {name: value for name, value in unsaid.items() if getattr(settings, name) is None}
    settings = settings.model_copy(update=unsaid)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)  # one line each, for logs
    logger.setLevel(logging.INFO)
    with bind(settings.server) as bound:
        with download_bar() as progress:
            opened = Checkpoint.open(settings.checkpoint, progress=progress)
        with Engine.open(settings, checkpoint=opened) as engine:
            server = TalkServer(engine, settings.server, bound)
            logger.info("warming up, to serve on %s", server.url)
            with suppress(KeyboardInterrupt):  # after the server has stopped in good order
                server.run()
    if server.failure is not None:
        raise server.failure
