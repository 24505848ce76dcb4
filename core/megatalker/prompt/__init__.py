"""Text to talker rows: the prompts of the official package, and text that arrives piece by piece."""

from megatalker.prompt.builder import Layout, Prompt, PromptBuilder

__all__ = ["Layout", "Prompt", "PromptBuilder"]
