"""The text-to-speech plugin: text in, speech of a shared engine out."""

import time
import weakref
from typing import Any, ClassVar, Literal

from livekit.agents import tts
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions

import megatalker
from megatalker import SAMPLE_RATE
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.errors import MegatalkerError
from megatalker.serving.samples import SampleEncoder
from megatalker.serving.shared_engines.pool import EnginePool, Lease
from megatalker.serving.shared_engines.source import Source
from megatalker_livekit.errors import api_error
from megatalker_livekit.streams import ChunkedStream, SynthesizeStream


class TTS(tts.TTS[Literal["backend_switched"]]):
    """Qwen3-TTS through megatalker, in this process or on a server: mono, 24 kHz unless another rate is asked for.

    In this process, all instances with the same engine settings share one engine. It is loaded off the event loop, by
    :meth:`prewarm` or when there is first something to say, and closed when the last of them is closed.

    Word times (``aligned_transcript``) are estimates, or those of the setting ``aligner``.

    Text is fed to the model piece by piece as the language model writes it.

    Events, besides the framework's:
        backend_switched: a backend failed in the middle of speech, which goes on on another; carries a
            :class:`megatalker.engine.BackendSwitch`.
    """

    engines: ClassVar[EnginePool] = EnginePool()
    """The engines of this process. The only state that instances share; a subclass may have a pool of its own."""

    def __init__(
        self,
        *,
        engine_settings: megatalker.Settings | None = None,
        engine: SpeechEngine | None = None,
        server_url: str | None = None,
        sample_rate: int = SAMPLE_RATE,
        **options: Any,
    ) -> None:
        """Load nothing yet.

        Args:
            engine_settings: the engine to share; by default read from the environment and ``megatalker.toml``.
            engine: an ``Engine`` or ``RemoteEngine`` of your own instead. You close it, after the sessions that use it.
            server_url: a running ``megatalker serve`` instead, such as ``http://localhost:8000``.
            sample_rate: of the audio in Hz: 8000, 16000, 22050, 24000, 44100 or 48000.
            **options: as :meth:`update_options`.

        Raises:
            SettingsError: an impossible combination, or an unknown setting in environment or file.
            InvalidRequestError: there is no such option, or no such rate.
        """
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=SampleEncoder(rate=sample_rate).rate,
            num_channels=1,
        )
        self._source = Source(self.engines, engine_settings, engine, server_url)
        self._options = megatalker.SpeechOptions()
        self._streams: weakref.WeakSet[ChunkedStream | SynthesizeStream] = weakref.WeakSet()
        self.update_options(**options)

    @property
    def model(self) -> str:
        """The checkpoint; a server's is unknown here."""
        return super().model if self._source.settings is None else self._source.settings.checkpoint

    @property
    def provider(self) -> str:
        """Name of the provider in metrics."""
        return "megatalker"

    @property
    def options(self) -> megatalker.SpeechOptions:
        """Options of utterances that begin from now on."""
        return self._options

    def update_options(self, **changes: Any) -> None:
        """Speak otherwise from the next utterance on; what is left out stays, ``None`` is the engine's own.

        Args:
            **changes: fields of :class:`megatalker.SpeechOptions`: ``voice``, a speaker of the checkpoint or a cloned
                or designed ``Voice``; ``language``, a code such as ``en-GB`` or a name such as ``english``, or
                ``auto``; ``instruct``; ``seed``; ``sampling``; ``max_ahead_s``;
                ``clean_text``; ``normalize``; ``lexicon``; ``markup``; ``cast``. What the engine cannot do is said by
                the utterance that asks for it.

        Raises:
            InvalidRequestError: there is no such option.
        """
        self._options = megatalker.SpeechOptions.of(self._options, changes)

    # ---- life

    def prewarm(self) -> None:
        """Begin to load the engine, in the background; a session does that when it starts. Needs no event loop."""
        self.lease()

    def lease(self) -> Lease:
        """This instance's share of the engine, which may still be loading; a new one if that cannot speak any more."""
        found = self._source.begin()
        if (before := self._source.adopt(found)) is not None:
            before.leave()
        return found.lease

    def give_up(self, lease: Lease, error: Exception) -> bool:
        """Use the engine no more if it is gone; ``True`` unless another attempt would meet the same dead engine."""
        if not self._source.is_gone(error):
            return True
        if self._source.current is not None and self._source.current.lease is lease:
            self._source.give_up()
            lease.leave()
        return self._source.replaceable

    def report(self, error: MegatalkerError) -> None:
        """Emit ``error``: some text could not be spoken, and the speech goes on or is over without it."""
        failure = tts.TTSError(timestamp=time.time(), label=self.label, error=api_error(error), recoverable=True)
        self.emit("error", failure)

    async def aclose(self) -> None:
        """End all speech and give the engine back; it is closed if nobody else uses it."""
        for stream in list(self._streams):
            await stream.aclose()
        await self._source.leave()

    # ---- speech

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        """Speak a text that is complete."""
        stream = ChunkedStream(self, text, conn_options)
        self._streams.add(stream)
        return stream

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> tts.SynthesizeStream:
        """Speak a text while it is being written."""
        stream = SynthesizeStream(self, conn_options)
        self._streams.add(stream)
        return stream
