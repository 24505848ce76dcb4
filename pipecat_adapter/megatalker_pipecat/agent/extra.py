"""Whether everything the agent needs is installed."""

import sys
from importlib.util import find_spec

NEEDED = ("aiortc", "deepgram", "fastapi", "uvicorn")


def require_extra() -> None:
    """End the process with one line if the extra ``agent`` is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f"error: the agent needs {', '.join(missing)}, not installed: pip install 'megatalker[agent]'")
