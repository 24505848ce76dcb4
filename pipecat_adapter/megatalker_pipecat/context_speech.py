"""One stream of the engine on its way into one audio context."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import BackendSwitch
from megatalker.engine.speech.outputs import require_complete
from megatalker.engine.speech.protocols import Speech
from megatalker.engine.speech.word_times import SpokenWord
from megatalker_pipecat.audio import Sound


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """Audio, and the words that begin in it."""

    audio: bytes
    """16-bit PCM, possibly empty."""
    words: list[SpokenWord]
    """Their times count from the start of the audio."""
    switches: tuple[BackendSwitch, ...]
    """Moves to other backends since the piece before."""


class ContextSpeech:
    """Speech of the engine, made ready for Pipecat. Iterate over it once, with ``async for``.

    The iteration raises what the engine's raises, and ``IncompleteSpeechError`` after the last piece of speech that
    leaves out some of its text.
    """

    def __init__(self, speech: Speech, sound: Sound) -> None:
        """``speech`` with word times."""
        self._speech, self._sound = speech, sound
        self._told = 0
        self._made_s = 0.0
        """Audio of the engine, leading silence included."""
        self.complete = False
        """Whether all of the text was spoken, and all audio handed out."""

    @property
    def seconds(self) -> float:
        """Duration of the audio handed out."""
        return self._sound.seconds

    def feed(self, text: str) -> None:
        """Append text to an utterance whose text arrives in pieces.

        Raises:
            InvalidRequestError: it cannot be spoken; the utterance goes on without it.
        """
        self._speech.feed(text)

    def end_text(self) -> None:
        """Tell the engine that no text follows."""
        self._speech.finish()

    def cancel(self) -> None:
        """Cancel the speech; never waits."""
        self._speech.cancel()

    async def __aiter__(self) -> AsyncIterator[SpokenPiece]:
        async for chunk in self._speech:
            audio = self._sound.push(chunk.pcm)
            self._made_s += len(chunk.pcm) / SAMPLE_RATE
            words = self._new_words() if self._sound.seconds else []
            yield SpokenPiece(audio, words, self._new_switches())
        if self._speech.finish_reason == "cancelled":
            return
        audio, facts = self._sound.finish(), self._speech.facts()
        yield SpokenPiece(audio, self._new_words(), self._new_switches())
        require_complete(facts)
        self.complete = True

    def _new_words(self) -> list[SpokenWord]:
        trimmed_s = self._made_s - self._sound.seconds
        return [
            replace(word, begins_s=max(0.0, word.begins_s - trimmed_s), ends_s=max(0.0, word.ends_s - trimmed_s))
            for word in self._speech.take_words(begun=True)
        ]

    def _new_switches(self) -> tuple[BackendSwitch, ...]:
        switches = self._speech.switches[self._told :]
        self._told += len(switches)
        return switches
