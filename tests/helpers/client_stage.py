"""A ``RemoteEngine`` in front of a server of its own, and servers that misbehave."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websocket

from megatalker.serving.client import RemoteEngine
from serving import Served
from waiting import HANG_S

Pair = Callable[..., tuple[Served, RemoteEngine]]


@contextmanager
def rogue_server(handle: Callable[[ServerConnection], None], **options: Any) -> Iterator[str]:
    """Run a WebSocket server that calls ``handle`` for each connection."""
    with serve_websocket(handle, "127.0.0.1", 0, compression=None, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(HANG_S)
