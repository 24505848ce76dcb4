"""The event loop that the server runs in."""

import sys
from typing import TYPE_CHECKING

from megatalker.serving.timers import SplitTimers

if TYPE_CHECKING or sys.platform == "win32":
    from asyncio import SelectorEventLoop as Loop
else:
    from uvloop import Loop


class ServerLoop(SplitTimers, Loop):
    """As uvicorn's own choice; a pause of the process gives up no client."""
