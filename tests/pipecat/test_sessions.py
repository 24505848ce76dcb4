"""Many sessions in one process: one engine, no cross-talk."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pipecat.frames.frames import InterruptionFrame, TTSAudioRawFrame
from pipecat.services.tts_service import TextAggregationMode

from megatalker import Checkpoint, Chunk, Engine, Settings
from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.engine import SpeechOptions, SpeechStream
from megatalker_pipecat import EnginePool, MegatalkerTTSService
from megatalker_pipecat.audio import Sound
from pipecat_stage import HANG_S, Brake, ServiceOutput, pcm16, perform, service_with, turn
from session_stage import FRAMES, engine_on, fakes, pool_of

pytestmark = pytest.mark.asyncio
SESSIONS = 8
TEXTS = [f"This is session number {number}, and it is not the others." for number in range(SESSIONS)]


class RecordingEngine:
    """An engine that records the codes of everything it says, by text."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.codes = engine, dict[str, list[list[int]]]()

    def check(self, options: SpeechOptions) -> None:
        self.engine.check(options)

    def speak(self, text: str | None, options: SpeechOptions) -> Any:
        stream = self.engine.speak(text, options, return_codes=True)
        return stream if text is None else _Recording(stream, self.codes.setdefault(text, []))

    def close(self) -> None:
        """The test closes the engine."""


class _Recording:
    def __init__(self, stream: SpeechStream, codes: list[list[int]]) -> None:
        self._stream, self._codes = stream, codes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_Recording":
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._stream.__anext__()
        assert chunk.codes is not None
        self._codes += chunk.codes.tolist()
        return chunk


@pytest.fixture(scope="module")
def demo_engine(demo: Checkpoint) -> Iterator[Engine]:
    with Engine.open(Settings(backend="compiled", max_frames=12), checkpoint=demo) as engine:
        yield engine


@pytest.mark.slow
async def test_eight_sessions_speak_the_codes_of_their_solo_runs(demo_engine: Engine) -> None:
    recorder = RecordingEngine(demo_engine)
    service_class = service_with(EnginePool(lambda settings: recorder))

    def session(number: int) -> MegatalkerTTSService:
        return service_class(engine_settings=Settings(), settings=service_class.Settings(seed=number))

    heard = await asyncio.gather(*(perform(session(n), turn(text)) for n, text in enumerate(TEXTS)))
    for number, text in enumerate(TEXTS):
        alone = [chunk async for chunk in demo_engine.speak(text, seed=number, return_codes=True)]
        assert recorder.codes[text] == [codes for chunk in alone for codes in chunk.codes.tolist()]
        sound = Sound(SAMPLE_RATE, trim=True)
        audio = b"".join(sound.push(chunk.pcm) for chunk in alone) + sound.finish()
        assert len(heard[number].audio()) == len(audio) > 2 * 1920


@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_sessions_share_one_engine_and_hear_only_themselves(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    plug_in = fakes()
    opened = []
    pool = pool_of(plug_in, tiny_custom_voice)
    service_class = service_with(pool)

    def note(frame: object) -> None:
        opened.append(plug_in.loaded["fake"])

    heard = await asyncio.gather(
        *(
            perform(
                service_class(
                    engine_settings=Settings(voice=voice),  # a session's voice does not need an engine of its own
                    settings=service_class.Settings(seed=number),
                    text_aggregation_mode=mode,
                ),
                turn(text),
                watch=note,
            )
            for number, (text, voice) in enumerate(zip(TEXTS, ["ryan", "vivian"] * 4, strict=True))
        )
    )
    assert len(set(map(id, opened))) == 1
    assert plug_in.loaded["fake"].closed.is_set(), "the last session closes it"
    with engine_on(fakes(), tiny_custom_voice) as engine:
        for number, text in enumerate(TEXTS):
            assert heard[number].words() == text.split()
            if mode is TextAggregationMode.SENTENCE:
                voice = ["ryan", "vivian"][number % 2]
                assert heard[number].audio() == pcm16(engine, text, seed=number, voice=voice)


async def test_an_interruption_concerns_one_session(tiny_custom_voice: Checkpoint) -> None:
    brake = Brake(after=6)
    with engine_on(fakes(on_decode=brake), tiny_custom_voice, max_chunk_frames=1) as engine:
        interrupted = asyncio.Event()

        async def interrupt(entrance: Any, frame: object) -> None:
            if isinstance(frame, TTSAudioRawFrame) and not interrupted.is_set():
                interrupted.set()
                await entrance.send(InterruptionFrame())
                await entrance.end()
            elif isinstance(frame, InterruptionFrame):
                brake.let_go.set()

        async def speak_beside_it() -> ServiceOutput:
            await interrupted.wait()  # the brake stops both: the first must have been heard by then
            return await perform(MegatalkerTTSService(engine=engine), turn(TEXTS[1]))

        first, second = await asyncio.gather(
            perform(MegatalkerTTSService(engine=engine), turn(TEXTS[0]), hear=interrupt), speak_beside_it()
        )
        assert len(first.audio()) < 2 * FRAMES * 1920
        assert len(second.audio()) == 2 * FRAMES * 1920
        assert engine.metrics().cancelled == 1


async def test_more_sessions_than_streams_wait_for_each_other(tiny_custom_voice: Checkpoint) -> None:
    with engine_on(fakes(), tiny_custom_voice, max_streams=2) as engine:
        heard = await asyncio.gather(*(perform(MegatalkerTTSService(engine=engine), turn(text)) for text in TEXTS))
        assert {len(one.audio()) for one in heard} == {2 * FRAMES * 1920}


async def test_sessions_may_live_in_several_event_loops(tiny_custom_voice: Checkpoint) -> None:
    plug_in = fakes()
    pool = pool_of(plug_in, tiny_custom_voice)
    together = threading.Barrier(3)

    async def session(text: str) -> tuple[int, int]:
        async with await pool.lease(Settings()) as lease:
            together.wait(HANG_S)
            stream = await lease.speak(text, SpeechOptions())
            frames = [chunk.frames async for chunk in stream]
            together.wait(HANG_S)
            return id(plug_in.loaded["fake"]), sum(frames)

    loops = (asyncio.to_thread(asyncio.run, session(text)) for text in TEXTS[:3])
    answers = await asyncio.gather(*loops)
    assert answers == [(id(plug_in.loaded["fake"]), FRAMES)] * 3
