"""Audio on its way into Pipecat: no sample is lost or made up, at any rate, over any pauses; leading silence goes."""

import asyncio
import time
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.frames.frames import TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.tts_service import TextAggregationMode

from megatalker import FRAME_SAMPLES, Checkpoint, SpeechStream
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine import Chunk
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.audio import LeadingSilence, Pcm, Sound, to_bytes
from megatalker_pipecat.context_speech import ContextSpeech
from pipecat_stage import pcm16, perform, turn
from session_stage import FRAMES, engine_on, fakes

RATES = [8_000, 16_000, 24_000, 48_000]


def noise(samples: int, level: float = 0.5) -> Pcm:
    return np.random.default_rng(samples).uniform(-level, level, samples).astype(np.float32)


def through(sound: Sound, pcm: Pcm, cuts: list[int]) -> bytes:
    parts = np.split(pcm, sorted(cut % (len(pcm) + 1) for cut in cuts))
    return b"".join(map(sound.push, parts)) + sound.finish()


@pytest.mark.parametrize("rate", RATES)
@given(samples=st.integers(0, 30_000), cuts=st.lists(st.integers(0, 30_000), max_size=8))
def test_every_sample_arrives_however_it_is_cut(rate: int, samples: int, cuts: list[int]) -> None:
    pcm = noise(samples)
    audio = through(Sound(rate, trim=False), pcm, cuts)
    assert len(audio) == 2 * round(samples * rate / 24_000)
    assert audio == through(Sound(rate, trim=False), pcm, [])


@pytest.mark.parametrize("rate", RATES)
def test_the_first_chunk_of_one_frame_gives_audio(rate: int) -> None:
    """A frame must not be needed to get another one out."""
    assert len(Sound(rate, trim=False).push(noise(FRAME_SAMPLES))) > 0


@pytest.mark.parametrize("rate", RATES)
def test_resampled_audio_is_the_same_sound(rate: int) -> None:
    seconds = np.arange(24_000) / 24_000
    tone = (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    audio = np.frombuffer(through(Sound(rate, trim=False), tone, list(range(0, 24_000, 1_920))), "<i2")
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate) * 32767
    inner = slice(rate // 50, -rate // 50)  # the filter rings where the tone is cut off
    assert np.abs(audio[inner] - expected[inner]).max() < 40


def test_samples_beyond_full_scale_are_clipped() -> None:
    assert np.frombuffer(to_bytes(np.array([1.5, -1.5, 1.0, 0.0], np.float32)), "<i2").tolist() == [
        32767,
        -32768,
        32767,
        0,
    ]


@pytest.mark.parametrize("frames", [0, 1, 3, 7])
def test_leading_silence_is_cut_to_a_moment(frames: int) -> None:
    quiet, loud = noise(frames * FRAME_SAMPLES, level=1e-4), noise(3 * FRAME_SAMPLES)
    trimmer, out = LeadingSilence(), []
    for chunk in np.split(np.concatenate([quiet, loud]), frames + 3):
        out.append(trimmer.push(chunk))
    played = np.concatenate([*out, trimmer.finish()])
    assert played[-len(loud) :].tolist() == loud.tolist(), "nothing of the sound is lost"
    assert len(played) - len(loud) <= (LeadingSilence.PREROLL_S + 0.01) * 24_000


def test_silence_inside_speech_stays() -> None:
    pcm = np.concatenate([noise(4_000), np.zeros(48_000, np.float32), noise(4_000)])
    trimmer = LeadingSilence()
    assert len(trimmer.push(pcm)) == len(pcm)


def test_a_voice_too_quiet_to_tell_from_silence_is_heard_whole() -> None:
    pcm = noise(5 * FRAME_SAMPLES, level=1e-3)
    trimmer = LeadingSilence()
    assert np.concatenate([trimmer.push(pcm), trimmer.finish()]).tolist() == pcm.tolist()


def test_silence_is_not_held_back_for_ever() -> None:
    trimmer, given = LeadingSilence(), np.zeros(24_000, np.float32)
    assert len(trimmer.push(given)) == len(given)
    assert len(trimmer.push(given)) == len(given)


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(TextAggregationMode))
@pytest.mark.parametrize("rate", RATES)
async def test_a_turn_has_every_sample(tiny_custom_voice: Checkpoint, rate: int, mode: TextAggregationMode) -> None:
    with engine_on(fakes(), tiny_custom_voice) as engine:
        service = MegatalkerTTSService(engine=engine, text_aggregation_mode=mode)
        heard = await perform(
            service,
            turn("Good morning. ", "How are you? ", "Fine."),
            params=PipelineParams(audio_out_sample_rate=rate),
        )
        frames = heard.of(TTSAudioRawFrame)
        assert {(frame.sample_rate, frame.num_channels) for frame in frames} == {(rate, 1)}
        utterances = 3 if mode is TextAggregationMode.SENTENCE else engine.metrics().frames / FRAMES
        assert sum(frame.num_frames for frame in frames) == utterances * FRAMES * FRAME_SAMPLES * rate // 24_000


@pytest.mark.asyncio
@pytest.mark.parametrize("rate", RATES)
async def test_a_pause_of_the_engine_loses_nothing(tiny_custom_voice: Checkpoint, rate: int) -> None:
    """Pipecat's own resampler forgets what it holds after 0.2 s without audio."""

    def pause(call: int) -> None:
        if call in (3, 7):
            time.sleep(0.3)

    with engine_on(fakes(on_decode=pause), tiny_custom_voice, max_chunk_frames=1) as engine:
        service = MegatalkerTTSService(engine=engine, sample_rate=rate, settings=MegatalkerTTSService.Settings(seed=1))
        heard = await perform(service, [TTSSpeakFrame("Good morning.")])
        whole = np.frombuffer(pcm16(engine, "Good morning.", seed=1), "<i2").astype(np.float32) / 32767
        alone = np.frombuffer(through(Sound(rate, trim=True), whole, []), "<i2").astype(int)
        assert np.abs(np.frombuffer(heard.audio(), "<i2").astype(int) - alone).max() <= 1


@pytest.mark.asyncio
async def test_leading_silence_of_a_turn_is_not_played(tiny_custom_voice: Checkpoint) -> None:
    plug_in = fakes()

    def hush(call: int, chunks: list[object]) -> list[object]:
        return [chunk * (0.0 if call < 4 else 1.0) for chunk in chunks]  # type: ignore[operator]

    plug_in.codecs["noise"].spoil = hush
    with engine_on(plug_in, tiny_custom_voice, max_chunk_frames=1) as engine:
        heard = await perform(MegatalkerTTSService(engine=engine), [TTSSpeakFrame("Good morning.")])
        samples = np.frombuffer(heard.audio(), "<i2")
        assert np.abs(samples[:960]).max() > 0, "sound begins at once"
        assert (FRAMES - 4) * FRAME_SAMPLES <= len(samples) <= (FRAMES - 4) * FRAME_SAMPLES + 720


@pytest.mark.asyncio
async def test_slow_speech_stays_in_its_context(tiny_custom_voice: Checkpoint) -> None:
    """Pipecat ends a context that is quiet for ``stop_frame_timeout_s``; an engine that is slow is not quiet."""

    def slow(call: int) -> None:
        time.sleep(0.25 if call < 3 else 0.0)

    with engine_on(fakes(on_decode=slow), tiny_custom_voice, max_chunk_frames=1) as engine:
        for mode in TextAggregationMode:
            service = MegatalkerTTSService(engine=engine, stop_frame_timeout_s=0.1, text_aggregation_mode=mode)
            heard = await perform(service, turn("Good morning."))
            assert len(heard.audio()) == 2 * FRAMES * FRAME_SAMPLES
            assert [name for name in heard.named() if name.startswith("TTSS")] == ["TTSStartedFrame", "TTSStoppedFrame"]
            assert not heard.up


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_a_context_waits_for_an_engine_that_is_not_there_yet(
    tiny_custom_voice: Checkpoint, mode: TextAggregationMode
) -> None:
    class Late(MegatalkerTTSService):
        async def _begin(self, *asked: Any) -> ContextSpeech:
            await asyncio.sleep(0.4)
            return await super()._begin(*asked)

    with engine_on(fakes(), tiny_custom_voice) as engine:
        service = Late(engine=engine, stop_frame_timeout_s=0.1, text_aggregation_mode=mode)
        heard = await perform(service, turn("Good morning."))
        assert len(heard.audio()) == 2 * FRAMES * FRAME_SAMPLES
        assert not heard.up


@pytest.mark.asyncio
async def test_max_ahead_s_bounds_the_lead_over_all_sentences(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, made, take = 0.6, list[Chunk](), SpeechStream.__anext__

    async def note(stream: SpeechStream) -> Chunk:
        made.append(await take(stream))
        return made[-1]

    monkeypatch.setattr(SpeechStream, "__anext__", note)
    with engine_on(fakes(frames=8), tiny_custom_voice, max_chunk_frames=2) as engine:
        service = MegatalkerTTSService(engine=engine, settings=MegatalkerTTSService.Settings(max_ahead_s=limit))
        heard = await perform(service, turn("One. ", "Two. ", "Three."))
        assert len(heard.audio()) == 2 * 24 * FRAME_SAMPLES
        seconds = accumulate(chunk.frames * FRAME_SECONDS for chunk in made)
        passed = [chunk.decoded_at - made[0].decoded_at for chunk in made]
        leads = [total - since for total, since in zip(seconds, passed, strict=True)]
        assert max(leads) <= limit + 0.01
        assert max(leads) > limit / 2
