"""``python -m megatalker_pipecat.agent``. Pipecat's runner looks for ``bot`` in the main module, which this is."""

from megatalker_agent import require_extra

require_extra()  # before the imports that would fail without it

from megatalker_pipecat.agent.bot import bot  # noqa: E402
from megatalker_pipecat.agent.command import run  # noqa: E402

__all__ = ["bot"]

if __name__ == "__main__":
    run()
