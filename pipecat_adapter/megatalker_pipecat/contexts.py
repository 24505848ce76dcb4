"""State of each audio context while it lasts."""

from dataclasses import dataclass

from pipecat.frames.frames import AggregatedTextFrame
from pipecat.utils.text.base_text_aggregator import TextType

from megatalker.prompt.cleaning import TextCleaner
from megatalker.prompt.control_tokens import ControlTokens
from megatalker_pipecat.context_speech import ContextSpeech


class WrittenAnswer:
    """Pieces of an answer that wait until it is certain how they are spoken."""

    def __init__(self, tokens: ControlTokens) -> None:
        """``tokens``: control tokens of the engine's checkpoint."""
        self._cleaner = TextCleaner(tokens)
        self._frames: list[AggregatedTextFrame] = []
        self._text = self._cleaned = ""

    def feed(self, frame: AggregatedTextFrame, text: str) -> None:
        """Add a piece: as Pipecat has it in ``frame``, and as the engine is given it."""
        self._frames.append(frame)
        self._text += text
        self._cleaned += self._cleaner.feed(text)

    def take(self, *, complete: bool = False) -> tuple[AggregatedTextFrame, str] | None:
        """Return what waits, as written and as spoken; ``None`` if that depends on what follows.

        Args:
            complete: Nothing follows.
        """
        if complete:
            self._cleaned += self._cleaner.finish()
        if not self._frames or self._cleaner.holds_back:
            return None
        written = "".join(frame.text for frame in self._frames)
        raw = "".join(frame.raw_text or frame.text for frame in self._frames)
        spoken = spoken_form(self._text, self._cleaned)
        self._frames, self._text, self._cleaned = [], "", ""
        return AggregatedTextFrame(written, TextType.TOKEN, raw_text=raw), spoken


def spoken_form(text: str, cleaned: str) -> str:
    """Return what Pipecat is to match reported words with: ``text`` if its words have the letters that are spoken."""
    same = _letters(text) == _letters(cleaned) and len(text.split()) == len(cleaned.split())
    return text if same else cleaned


@dataclass(slots=True)
class Context:
    """An audio context: one turn of the language model, or one ``TTSSpeakFrame``."""

    utterance: ContextSpeech | None = None
    """Speech that is being made in it."""
    seconds: float = 0.0
    """Duration of its utterances that are over: word times count from the start of the context."""
    spoken: bool = False
    """Whether it has had audio."""
    failed: bool = False
    """Whether some of its text could not be spoken."""
    text_ended: bool = False
    """``TOKEN`` mode: no text follows."""
    over: bool = False
    """``TOKEN`` mode: no audio follows, whatever text may come."""
    answer: WrittenAnswer | None = None
    """``TOKEN`` mode: its text until Pipecat is told what of it is spoken."""


class Contexts:
    """The contexts that have not ended, by id."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}

    def get(self, context_id: str) -> Context:
        """Return the context of this id, a new one if need be."""
        return self._contexts.setdefault(context_id, Context())

    def find(self, context_id: str) -> Context | None:
        """Return the context of this id if there is one."""
        return self._contexts.get(context_id)

    def ids(self) -> list[str]:
        """Return the ids of all contexts."""
        return list(self._contexts)

    def drop(self, context_id: str) -> None:
        """Forget the context, and cancel its speech. Never waits."""
        context = self._contexts.pop(context_id, None)
        if context is not None and context.utterance is not None:
            context.utterance.cancel()


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
