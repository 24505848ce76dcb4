"""Speech from a megatalker server, with the face of an engine in this process. Needs the extra ``client``."""

from typing import TYPE_CHECKING

try:
    import websockets  # noqa: F401 - so that its lack is explained
except ImportError as error:
    raise ImportError(
        "megatalker.serving.client needs the package websockets: pip install 'megatalker[client]'", name=error.name
    ) from error

from megatalker.serving.client.engine import RemoteEngine
from megatalker.serving.client.stream import RemoteStream

if TYPE_CHECKING:  # near and far engines have one face
    from megatalker.engine import Engine
    from megatalker.engine.speech.protocols import SpeechEngine

    _ENGINES: tuple[type[SpeechEngine], ...] = (Engine, RemoteEngine)

__all__ = ["RemoteEngine", "RemoteStream"]
