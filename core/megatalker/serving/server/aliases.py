"""Names of OpenAI's that clients send unasked, and what they stand for here."""

from megatalker.serving.server.problems import UnknownModelError
from megatalker.serving.server.speaker import Speaker
from megatalker.settings import ServerSettings
from megatalker.voices import list_speakers
from megatalker.voices.names import name_key

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)  # fmt: skip


class Aliases:
    """The model served here, and the names that requests may use for it and for its voices."""

    def __init__(self, speaker: Speaker, settings: ServerSettings) -> None:
        self.model = settings.model or speaker.engine.checkpoint.name
        self.model_aliases = settings.model_aliases
        self._speaker, self._configured = speaker, settings.voice_aliases

    def require_model(self, name: str) -> None:
        """Raise ``UnknownModelError`` unless this is the model, or an alias of it."""
        if name not in (self.model, *self.model_aliases):
            others = f", or one of its aliases {', '.join(self.model_aliases)}" if self.model_aliases else ""
            raise UnknownModelError(f"model is {name!r}, expected {self.model!r}, which is what is served here{others}")

    def voice(self, name: str | None) -> str | None:
        """The voice that a request means; voices of this name come before aliases."""
        return name if name is None or self._is_known(name) else self.voices().get(name, name)

    def voices(self) -> dict[str, str | None]:
        """What each alias stands for. Where nothing is configured, OpenAI's voices go round the voices known here, the
        default voice first; ``None`` is the voice of a request that names none.
        """
        if self._configured is not None:
            return dict(self._configured)
        first, known = self._speaker.engine.settings.voice, self._known()
        order = [first, *(name for name in known if name != first)] if first in known else known
        return {alias: order[index % len(order)] if order else None for index, alias in enumerate(OPENAI_VOICES)}

    def _is_known(self, name: str) -> bool:
        speakers = list_speakers(self._speaker.engine.checkpoint)
        return name in self._speaker.voices or name_key(name) in map(name_key, speakers)

    def _known(self) -> list[str]:
        """Speakers of the checkpoint; what the server keeps where it has none."""
        return list_speakers(self._speaker.engine.checkpoint) or sorted(
            name for name, _ in self._speaker.voices.items()
        )
