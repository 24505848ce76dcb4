"""LiveKit's plugin as a face of the fuzz."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from livekit.agents.tts import TTSError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from megatalker import Engine
from megatalker_benchmarks.fuzz_faces import PATIENCE_S, FaceSpeech, SpeakText
from megatalker_livekit import TTS


async def _speak(speaker: TTS, text: str, pieces: Sequence[str] | None) -> FaceSpeech:
    if pieces is None:
        stream = speaker.synthesize(text)
    else:
        stream = speaker.stream()
        for piece in pieces:
            stream.push_text(piece)
        stream.end_input()
    samples, words = 0, list[str]()
    async with asyncio.timeout(PATIENCE_S), stream:
        async for event in stream:
            samples += event.frame.samples_per_channel
            words += event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())
    return FaceSpeech(samples, words=words)


@contextmanager
def livekit(engine: Engine) -> Iterator[SpeakText]:
    """``TTS.synthesize``, and ``TTS.stream`` for pieces."""
    failures: list[TTSError] = []
    with asyncio.Runner() as runner:

        async def open_speaker() -> TTS:
            return TTS(engine=engine)

        speaker = runner.run(open_speaker())
        speaker.on("error", failures.append)

        def speak(text: str, pieces: Sequence[str] | None) -> FaceSpeech:
            failures.clear()
            found = runner.run(_speak(speaker, text, pieces))
            if failures:
                raise RuntimeError(str(failures[0].error))
            return found

        try:
            yield speak
        finally:
            runner.run(speaker.aclose())
