"""What the service remembers about each audio context while it lasts."""

from dataclasses import dataclass, field

from megatalker.prompt.cleaning import TextCleaner, clean
from megatalker_pipecat.context_speech import ContextSpeech


@dataclass(slots=True)
class Context:
    """An audio context: one turn of the language model, or one ``TTSSpeakFrame``."""

    utterance: ContextSpeech | None = None
    """What is being spoken in it."""
    seconds: float = 0.0
    """Duration of its utterances that are over: word times count from the start of the context."""
    spoken: bool = False
    """It has had audio."""
    failed: bool = False
    """Something of its text could not be spoken."""
    text_ended: bool = False
    """``TOKEN`` mode: no text follows."""
    over: bool = False
    """``TOKEN`` mode: no audio follows, whatever text may come."""
    _cleaner: TextCleaner = field(default_factory=TextCleaner)
    """Cleans as the engine does in ``TOKEN`` mode."""

    def spoken_form(self, text: str, *, complete: bool) -> str:
        """Return ``text`` with the letters that are spoken, which the words reported for it have.

        Pipecat matches words with this form. The text itself is returned where it has the same letters.

        Args:
            text: What the service is asked to speak.
            complete: It is a sentence, not a piece of a turn.
        """
        cleaned = clean(text) if complete else self._cleaner.feed(text)
        return text if _letters(cleaned) == _letters(text) else cleaned


class Contexts:
    """The contexts that have not ended, by id."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}

    def get(self, context_id: str) -> Context:
        """The context of this id, a new one if need be."""
        return self._contexts.setdefault(context_id, Context())

    def find(self, context_id: str) -> Context | None:
        """The context of this id if there is one."""
        return self._contexts.get(context_id)

    def ids(self) -> list[str]:
        """Of all contexts."""
        return list(self._contexts)

    def drop(self, context_id: str) -> None:
        """The context is over: end what is still being spoken in it. Never waits."""
        context = self._contexts.pop(context_id, None)
        if context is not None and context.utterance is not None:
            context.utterance.cancel()


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
