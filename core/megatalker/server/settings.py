"""Settings of the server: the table ``[server]``, or ``MEGATALKER_SERVER__*``."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Seconds = Annotated[float, Field(gt=0)]


class ServerSettings(BaseModel):
    """What ``megatalker serve`` is started with, besides the engine's own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """``0.0.0.0`` serves the network."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free one, which the log names."""
    api_key: SecretStr | None = None
    """Where set, speech is for those who send it: ``Authorization: Bearer KEY``."""
    voices: Path | None = None
    """A folder of voice files (``Voice.save``, ``megatalker say --save-voice``), served by their names."""
    model: str | None = None
    """The name that ``model`` has in requests and in ``GET /v1/models``; by default the checkpoint's."""
    max_message_bytes: Annotated[int, Field(ge=1024)] = 1 << 20
    """Of a request's body, and of one message of a WebSocket."""
    send_timeout_s: Seconds = 30.0
    """A client that accepts nothing for this long is dropped."""
    text_timeout_s: Seconds = 120.0
    """An open utterance for which no text arrives for this long ends with an error."""
    shutdown_timeout_s: Seconds = 10.0
    """How long clients get to read their last events when the server stops."""
