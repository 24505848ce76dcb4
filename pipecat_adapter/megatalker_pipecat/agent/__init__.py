"""A voice agent on Pipecat: speech to text, language model, megatalker's speech; or typed text in, speech out.

``megatalker-agent`` and ``python -m megatalker_pipecat.agent`` start it; ``--help`` lists the ways to talk to it.
"""

from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.plan import Plan
from megatalker_pipecat.agent.settings import AgentSettings

__all__ = ["AgentSettings", "Conversation", "Plan"]
