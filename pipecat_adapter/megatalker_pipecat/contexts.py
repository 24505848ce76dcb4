"""What the service remembers about each audio context while it lasts."""

from dataclasses import dataclass

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
