"""An engine around the loaded backends of the run, and a consumer that notes what reaches it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import Chunk, Engine, SpeechStream
from megatalker.interfaces import TalkerDecoder
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import CheckedCodec, CheckedTalker
from megatalker.plugins.device import dtype_name
from megatalker.sampling import SamplingParams
from megatalker.settings import Settings
from megatalker_conformance.cases import LANGUAGE, Layout, conformance_voice
from megatalker_conformance.recording import Log, WatchedCodec, WatchedTalker, registry_of
from megatalker_conformance.streams import Codes

FRAMES = 32
"""Frames of an utterance in the engine."""


OpenEngine = Callable[[Settings, Checkpoint, BackendRegistry], Engine]


@dataclass
class Received:
    """Chunks and events that one consumer received."""

    chunks: list[Chunk] = field(default_factory=list)

    @property
    def pcm(self) -> NDArray[np.float32]:
        return np.concatenate([chunk.pcm for chunk in self.chunks])

    @property
    def codes(self) -> list[Codes]:
        frames = [frame for chunk in self.chunks if chunk.codes is not None for frame in chunk.codes]
        return [tuple(int(code) for code in frame) for frame in frames]

    @property
    def rtf(self) -> float:
        """Time from the request to the last chunk, divided by the duration of the audio."""
        last = self.chunks[-1]
        return (last.delivered_at - last.requested_at) * SAMPLE_RATE / len(self.pcm)

    @property
    def silence_s(self) -> float:
        """Seconds for which a player that starts at the first chunk has nothing to play."""
        deadline, silence = self.chunks[0].delivered_at, 0.0
        for chunk in self.chunks:
            late = max(0.0, chunk.delivered_at - deadline)
            silence += late
            deadline += late + len(chunk.pcm) / SAMPLE_RATE
        return silence


class EngineHarness:
    """Opens engines on a talker decoder and a codec that are already loaded and warm.

    Args:
        open_engine: makes an engine; overridden to judge another one.
        checkpoint: of both backends.
        device: of both backends.
        dtype: of the talker.
        talker: watched as ``tested``.
        codec: watched as ``tested``.
    """

    def __init__(
        self,
        open_engine: OpenEngine,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        talker: CheckedTalker,
        codec: CheckedCodec,
    ) -> None:
        self._open_engine = open_engine
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._talker = talker
        self._codec = codec

    @contextmanager
    def engine(self, log: Log, **failing: TalkerDecoder) -> Iterator[Engine]:
        """An engine whose backends write ``log``; ``tested`` takes over from decoders in ``failing``."""
        watched = WatchedTalker(self._talker, log)
        registry = registry_of({**failing, "tested": watched}, {"tested": WatchedCodec(self._codec, log)})
        settings = Settings(
            backend=next(iter(failing), "tested"),
            codec="tested",
            fallbacks=("tested",) if failing else (),
            codec_fallbacks=(),
            device=str(self._device),
            dtype=dtype_name(self._dtype),  # type: ignore[arg-type]
            max_streams=min(8, self._talker.max_streams or 8),
            step_deadline_s=600.0,
            runaway_guard=False,
            short_speech="believe",
        )
        # what the run's own configuration says about backends has been used to load them
        settings = settings.model_copy(update={"backends": {}, "codecs": {}})
        engine = self._open_engine(settings, self._checkpoint, registry)
        try:
            yield engine
        finally:
            engine.close()

    def begin(self, engine: Engine, text: str | None, sampling: SamplingParams, layout: Layout) -> SpeechStream:
        """Ask for ``FRAMES`` frames in the voice of all conformance tests."""
        return engine.speak(
            text,
            voice=conformance_voice(self._checkpoint),
            language=LANGUAGE,
            sampling=sampling,
            layout=layout,
            max_frames=FRAMES,
            return_codes=True,
        )

    def listen(self, stream: SpeechStream, log: Log) -> Received:
        """Take every chunk as it comes."""
        received = Received()
        for chunk in stream:
            received.chunks.append(chunk)
            log.taken()
        return received
