"""Text to talker rows: the prompts of the official package, and text that arrives piece by piece."""

from megatalker.prompt.builder import Prompt, PromptBuilder, PromptText
from megatalker.prompt.plan import Layout, PromptPlan, PromptPlanner

__all__ = ["Layout", "Prompt", "PromptBuilder", "PromptPlan", "PromptPlanner", "PromptText"]
