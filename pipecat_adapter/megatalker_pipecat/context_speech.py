"""One stream of the engine on its way into one audio context."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from megatalker.engine import BackendSwitch
from megatalker.engine.outputs import require_complete
from megatalker.engine.speech import Speech
from megatalker_pipecat.audio import Sound
from megatalker_pipecat.timing import SpokenWord, WordClock


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """Audio, and the words that begin in it or right after it."""

    audio: bytes
    """16-bit PCM, possibly empty."""
    words: list[SpokenWord]
    switches: tuple[BackendSwitch, ...]
    """Moves to other backends since the piece before."""


class ContextSpeech:
    """Speech of the engine, made ready for Pipecat. Iterate over it once, with ``async for``.

    The iteration raises what the engine's raises, and ``IncompleteSpeechError`` after the last piece of speech that
    leaves out some of its text.
    """

    def __init__(self, speech: Speech, text: str | None, sound: Sound, words: WordClock) -> None:
        """``text``: what is said, ``None`` when it will be fed."""
        self._speech, self._sound, self._words = speech, sound, words
        if text is not None:
            words.feed(text)
            words.end_text()
        self._told = 0
        self.complete = False
        """Everything has been handed out, the end of the text reached."""

    @property
    def seconds(self) -> float:
        """Duration of the audio handed out."""
        return self._sound.seconds

    def feed(self, text: str) -> None:
        """More text of an utterance whose text arrives bit by bit.

        Raises:
            InvalidRequestError: it cannot be spoken; the utterance goes on without it.
        """
        self._speech.feed(text)
        self._words.feed(text, self._sound.seconds)

    def end_text(self) -> None:
        """No text follows."""
        self._speech.finish()
        self._words.end_text(self._sound.seconds)

    def cancel(self) -> None:
        """End it now; never waits."""
        self._speech.cancel()

    async def __aiter__(self) -> AsyncIterator[SpokenPiece]:
        async for chunk in self._speech:
            audio = self._sound.push(chunk.pcm)
            yield SpokenPiece(audio, self._words.due(self._sound.seconds), self._new_switches())
        if self._speech.finish_reason == "cancelled":
            return
        audio, facts = self._sound.finish(), self._speech.facts()
        words = self._words.rest(self._sound.seconds, unsaid_chars=facts.unsaid_chars)
        yield SpokenPiece(audio, words, self._new_switches())
        require_complete(facts)
        self.complete = True

    def _new_switches(self) -> tuple[BackendSwitch, ...]:
        switches = self._speech.switches[self._told :]
        self._told += len(switches)
        return switches
