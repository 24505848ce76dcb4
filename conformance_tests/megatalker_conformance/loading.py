"""Loads a backend as the engine would: with its own settings from the environment and ``megatalker.toml``."""

import torch

from megatalker.interfaces import CodecBackend, LoadContext, TalkerBackend
from megatalker.plugins.options import own_settings
from megatalker.settings import Settings


def load_context(
    spec: TalkerBackend | CodecBackend, device: torch.device, dtype: torch.dtype, settings: Settings | None = None
) -> LoadContext:
    """Return the context to load in: device, type and the backend's own settings, which are read where ``settings`` are
    not given.

    Raises:
        SettingsError: the backend's own settings are wrong.
    """
    settings = settings or Settings.read()
    return LoadContext(device, dtype, own_settings(spec, settings), settings.max_streams)
