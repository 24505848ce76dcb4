"""A stage for the LiveKit plugin: a whole agent session without a room, with a caller that talks and listens."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession, APIConnectOptions, llm, stt, tts, vad
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities

from fake_backend import Fakes
from megatalker import Checkpoint
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.serving.audio import to_pcm16
from megatalker_livekit import TTS
from session_stage import pool_of
from waiting import HANG_S

Step = str | asyncio.Event
"""A piece of a language model's answer, or what it waits for before it goes on."""


def tts_class(plug_in: Fakes, checkpoint: Checkpoint) -> type[TTS]:
    """A plugin whose shared engines run on fakes."""

    class FakeTTS(TTS):
        engines = pool_of(plug_in, checkpoint)

    return FakeTTS


async def spoken(engine: SpeechEngine, text: str, **options: Any) -> bytes:
    """Return the engine's speech for a text that is fed to it, generated alone: 16-bit PCM."""
    async with engine.speak(None, **options) as stream:
        stream.feed(text)
        stream.finish()
        return b"".join([to_pcm16(chunk.pcm) async for chunk in stream])


async def collect(stream: tts.ChunkedStream | tts.SynthesizeStream) -> bytes:
    async with stream:
        return b"".join([bytes(event.frame.data) async for event in stream])


def say(speaker: tts.TTS, *pieces: str, **options: Any) -> tts.SynthesizeStream:
    """A stream that has all its text."""
    stream = speaker.stream(**options)
    for piece in pieces:
        stream.push_text(piece)
    stream.end_input()
    return stream


def same_speech(heard: bytes, expected: bytes) -> bool:
    """Equal to the bit; the framework may put 10 ms of silence behind, where it has sent the last sample already."""
    return heard[: len(expected)] == expected and heard[len(expected) :] in (b"", bytes(480))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.001)


class Loudspeaker(AudioOutput):
    """Plays faster than sound, and keeps what it was given: one entry a segment."""

    def __init__(self) -> None:
        super().__init__(label="loudspeaker", capabilities=AudioOutputCapabilities(pause=False), sample_rate=24_000)
        self.segments: list[bytes] = []
        self.played = 0
        """Segments that are over."""

    @property
    def playing(self) -> bool:
        return len(self.segments) > self.played

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        assert (frame.sample_rate, frame.num_channels) == (24_000, 1)
        if not self.playing:
            self.segments.append(b"")
            self.on_playback_started(created_at=time.time())
        self.segments[-1] += bytes(frame.data)

    def flush(self) -> None:
        super().flush()
        self._end(interrupted=False)

    def clear_buffer(self) -> None:
        self._end(interrupted=True)

    def _end(self, *, interrupted: bool) -> None:
        if self.playing:
            self.played += 1
            self.on_playback_finished(playback_position=len(self.segments[-1]) / 48_000, interrupted=interrupted)


class SilentMicrophone(AudioInput):
    """Silent: what is said goes straight to speech detection and to recognition."""

    def __init__(self) -> None:
        super().__init__(label="microphone")

    async def __anext__(self) -> rtc.AudioFrame:
        return await asyncio.get_running_loop().create_future()


class SimulatedCaller:
    """A caller that talks; :attr:`vad` and :attr:`stt` hear it."""

    def __init__(self) -> None:
        self.vad, self.stt = ScriptedVAD(), ScriptedSTT()

    async def says(self, text: str) -> None:
        self.vad.tell(vad.VADEventType.START_OF_SPEECH)
        self.vad.tell(vad.VADEventType.INFERENCE_DONE)
        self.stt.tell(text)
        await asyncio.sleep(0)
        self.vad.tell(vad.VADEventType.END_OF_SPEECH)


class ScriptedVAD(vad.VAD):
    def __init__(self) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=0.1))
        self._streams: list[_VADStream] = []

    def stream(self) -> vad.VADStream:
        self._streams.append(_VADStream(self))
        return self._streams[-1]

    def tell(self, kind: vad.VADEventType) -> None:
        speaking = kind is not vad.VADEventType.END_OF_SPEECH
        event = vad.VADEvent(kind, 0, time.time(), speech_duration=1.0, silence_duration=0.0, speaking=speaking)
        self._streams[-1].events.put_nowait(event)


class _VADStream(vad.VADStream):
    def __init__(self, owner: ScriptedVAD) -> None:
        self.events: asyncio.Queue[vad.VADEvent] = asyncio.Queue()
        super().__init__(owner)

    async def _main_task(self) -> None:
        while True:
            self._event_ch.send_nowait(await self.events.get())


class ScriptedSTT(stt.STT):
    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=False))
        self._streams: list[_STTStream] = []

    async def _recognize_impl(self, *_: Any, **__: Any) -> stt.SpeechEvent:
        raise NotImplementedError("it only streams")

    def stream(self, *, conn_options: APIConnectOptions, **_: Any) -> stt.RecognizeStream:
        self._streams.append(_STTStream(stt=self, conn_options=conn_options))
        return self._streams[-1]

    def tell(self, text: str) -> None:
        data = stt.SpeechData(language="en", text=text)
        event = stt.SpeechEvent(type=stt.SpeechEventType.FINAL_TRANSCRIPT, alternatives=[data])
        self._streams[-1].events.put_nowait(event)


class _STTStream(stt.RecognizeStream):
    def __init__(self, **kwargs: Any) -> None:
        self.events: asyncio.Queue[stt.SpeechEvent] = asyncio.Queue()
        super().__init__(**kwargs)

    async def _run(self) -> None:
        while True:
            self._event_ch.send_nowait(await self.events.get())


class ScriptedLLM(llm.LLM):
    """Answers what the user says from a script."""

    def __init__(self, answers: Mapping[str, Sequence[Step]]) -> None:
        super().__init__()
        self.answers = answers

    def chat(
        self, *, chat_ctx: llm.ChatContext, tools: Any, conn_options: APIConnectOptions, **_: Any
    ) -> llm.LLMStream:
        return _LLMStream(self, chat_ctx=chat_ctx, tools=tools, conn_options=conn_options)


class _LLMStream(llm.LLMStream):
    async def _run(self) -> None:
        asked = next(item for item in reversed(self.chat_ctx.items) if item.type == "message")
        for step in self._llm.answers[asked.text_content]:
            if isinstance(step, str):
                delta = llm.ChoiceDelta(role="assistant", content=step)
                self._event_ch.send_nowait(llm.ChatChunk(id="scripted", delta=delta))
            else:
                await step.wait()


class LiveKitConversation:
    """A session in progress."""

    def __init__(self, session: AgentSession, caller: SimulatedCaller, loudspeaker: Loudspeaker) -> None:
        self.session, self.caller, self.loudspeaker = session, caller, loudspeaker
        self.errors: list[Any] = []
        session.on("error", lambda event: self.errors.append(event.error))

    @property
    def turns(self) -> list[llm.ChatMessage]:
        """The agent's own, as it remembers them."""
        return [item for item in self.session.history.messages() if item.role == "assistant"]

    @property
    def said(self) -> list[str | None]:
        return [turn.text_content for turn in self.turns]

    async def hears(self, turns: int) -> list[bytes]:
        """The first ``turns`` turns of the agent, once they are over."""
        await until(lambda: self.loudspeaker.played >= turns)
        return self.loudspeaker.segments[:turns]


@asynccontextmanager
async def conversation(
    speaker: tts.TTS, answers: Mapping[str, Sequence[Step]], *, aligned: bool = False
) -> AsyncIterator[LiveKitConversation]:
    """An agent session of speech detection, recognition, language model and the plugin; ``aligned``: the transcript is
    made of the plugin's words.
    """
    caller, loudspeaker = SimulatedCaller(), Loudspeaker()
    session: AgentSession = AgentSession(
        vad=caller.vad,
        stt=caller.stt,
        llm=ScriptedLLM(answers),
        tts=speaker,
        turn_handling={
            "turn_detection": "vad",
            "endpointing": {"mode": "fixed", "min_delay": 0.0, "max_delay": 0.0},
            "interruption": {"mode": "vad", "resume_false_interruption": False, "false_interruption_timeout": None},
            "preemptive_generation": {"enabled": False},
        },
        tts_text_transforms=None,
        use_tts_aligned_transcript=aligned,
        aec_warmup_duration=None,
        user_away_timeout=None,
        session_close_transcript_timeout=0.0,
    )
    session.input.audio, session.output.audio = SilentMicrophone(), loudspeaker
    try:
        async with asyncio.timeout(HANG_S):
            await session.start(Agent(instructions="Answer."), record=False)
            yield LiveKitConversation(session, caller, loudspeaker)
    finally:
        await session.aclose()
