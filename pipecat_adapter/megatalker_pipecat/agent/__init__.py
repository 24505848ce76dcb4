"""A voice agent on Pipecat: speech to text, language model, megatalker's speech; or typed text in, speech out.

``megatalker-agent`` and ``python -m megatalker_pipecat.agent`` start it; ``--help`` lists the ways to talk to it.
"""

from megatalker.checkpoint.official import refuse_telemetry

refuse_telemetry()  # before Pipecat imports onnxruntime

from megatalker_pipecat.agent.conversation import Conversation  # noqa: E402
from megatalker_pipecat.agent.plan import Plan  # noqa: E402
from megatalker_pipecat.agent.settings import AgentSettings  # noqa: E402

__all__ = ["AgentSettings", "Conversation", "Plan"]
