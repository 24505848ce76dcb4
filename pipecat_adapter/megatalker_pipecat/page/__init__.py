"""The browser page of a voice agent, and what its buttons do in the agent; for any bot with our service in it."""

from megatalker_pipecat.page.page import CLIENT, Page

__all__ = ["CLIENT", "Page"]
