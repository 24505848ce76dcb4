"""Registers the plugin with the framework, so that ``download-files`` fetches the checkpoint."""

import logging
from importlib.metadata import version

from livekit.agents import Plugin

import megatalker

logger = logging.getLogger("megatalker.livekit")


class MegatalkerPlugin(Plugin):
    """Plugin that ``python agent.py download-files`` asks, such as while an image is built."""

    def download_files(self) -> None:
        """Fetch the checkpoint that environment or ``megatalker.toml`` name.

        Raises:
            MegatalkerError: it is neither a folder nor on the hub, or cannot be read.
        """
        megatalker.Checkpoint.open(megatalker.Settings.read().checkpoint)


def register() -> None:
    """Register the plugin. Call it once, in the main thread."""
    Plugin.register_plugin(MegatalkerPlugin("megatalker_livekit", version("megatalker"), "megatalker_livekit", logger))
