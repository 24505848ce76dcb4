"""What every server does before it opens an engine, whoever started it."""

from megatalker.settings import Settings

MAX_UNTAKEN_S = 20.0
"""Where the settings say nothing: slow clients should cost no memory."""
MAX_WAIT_S = 30.0
"""Where the settings say nothing: nobody listens to a silence of this length."""


def served_settings(settings: Settings) -> Settings:
    """The same, with a server's own choice where nothing was said."""
    unsaid: dict[str, object] = {"max_untaken_s": MAX_UNTAKEN_S, "max_wait_s": MAX_WAIT_S, "warmup": "first"}
    unsaid = {name: value for name, value in unsaid.items() if getattr(settings, name) is None}
    return settings.model_copy(update=unsaid)
