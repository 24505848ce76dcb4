"""Watermarked speech: the same samples however it was cut, with the codes and ends that belong to them."""

import asyncio
from typing import Any

import numpy as np
import pytest

from engine_stage import TEXT, Opener, codes_of, fakes_with
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Chunk, Engine, SpeechStream
from megatalker.engine.speech.chunks import ChunkPolicy
from megatalker.engine.speech.joints import EDGE_SAMPLES
from megatalker.engine.speech.outputs import Continuation
from megatalker.engine.speech.stretching import PitchKeepingStretch
from megatalker.errors import BackendFaultError, MalformedResultError, PluginError, SettingsError
from megatalker.plugins.watermark import WatermarkModel
from scripted_watermark import ADDED, DELAY, ScriptedWatermark


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> ScriptedWatermark:
    return use(monkeypatch, ScriptedWatermark())


def use(monkeypatch: pytest.MonkeyPatch, model: ScriptedWatermark) -> ScriptedWatermark:
    """Let the setting ``scripted`` mean this model."""

    def load(name: str) -> WatermarkModel | None:
        return model if name == "scripted" else None

    monkeypatch.setattr("megatalker.engine.speech.marked_chunks.load_watermark", load)
    return model


def heard_before(error: type[Exception], stream: SpeechStream) -> list[Chunk]:
    """The chunks of speech that ends with this error."""
    chunks: list[Chunk] = []
    with pytest.raises(error):
        chunks.extend(stream)
    return chunks


def samples_of(chunks: list[Chunk]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.concatenate([chunk.pcm for chunk in chunks])


@pytest.mark.parametrize("target", [1, 3, 64])
def test_samples_do_not_depend_on_chunks(
    open_engine: Opener, marks: ScriptedWatermark, monkeypatch: pytest.MonkeyPatch, target: int
) -> None:
    monkeypatch.setattr(ChunkPolicy, "target", property(lambda policy: target, lambda policy, planned: None))
    plain = open_engine().speak(TEXT, seed=1).read_all()
    stream = open_engine(watermark="scripted").speak(TEXT, seed=1)
    chunks = list(stream)
    np.testing.assert_array_equal(samples_of(chunks), np.clip(plain + ADDED, -1, 1))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    ends = np.cumsum([chunk.frames for chunk in chunks])
    assert [chunk.sample_offset for chunk in chunks] == [0, *(1920 * ends[:-1])]
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].frames >= DELAY
    assert stream.finish_reason == "eos"


def test_parts_at_another_rate_are_marked_before(open_engine: Opener, marks: ScriptedWatermark) -> None:
    texts = "One now.", "Two now.", "Three now."
    slow = f"{texts[0]}<prosody rate='50%'>{texts[1]}</prosody><prosody volume='50'>{texts[2]}</prosody>"
    plain = open_engine(fakes_with(frames=6)).speak("\n\n".join(texts), seed=1).read_all()
    options = {"markup": "ssml", "seed": 1, "return_codes": True}
    chunks = list(open_engine(fakes_with(frames=6), watermark="scripted").speak(slow, **options))
    heard, part = samples_of(chunks), 6 * 1920
    marked = np.clip(plain + ADDED, -1, 1)
    stretch = PitchKeepingStretch(0.5)
    right = [marked[:part], stretch.process(marked[part : 2 * part]), stretch.finish(), marked[2 * part :] / 2]
    differs = np.flatnonzero(np.concatenate(right) != heard)
    places = part, 3 * part
    assert all(any(place <= at < place + EDGE_SAMPLES for place in places) for at in differs)
    assert [chunk.frames for chunk in chunks] == [len(chunk.codes) for chunk in chunks if chunk.codes is not None]
    assert sum(chunk.frames for chunk in chunks) == 18


def test_none_changes_nothing(open_engine: Opener) -> None:
    engine = open_engine(watermark="none")
    stream = engine.speak(TEXT, seed=1)
    assert stream._chunks is stream._link.chunks
    assert engine.settings.watermark == open_engine().settings.watermark


def test_codes_stay_with_their_frames(open_engine: Opener, marks: ScriptedWatermark) -> None:
    plain = codes_of(open_engine().speak(TEXT, seed=1, return_codes=True))
    assert codes_of(open_engine(watermark="scripted").speak(TEXT, seed=1, return_codes=True)) == plain


def test_another_engine_goes_on_where_the_marked_speech_stopped(open_engine: Opener, marks: ScriptedWatermark) -> None:
    engine = open_engine(watermark="scripted")
    whole = list(engine.speak_for("", TEXT, seed=1, return_codes=True))
    rest = list(engine.speak_for("", TEXT, seed=1, return_codes=True, after=Continuation.after(whole[:3])))
    frames = sum(chunk.frames for chunk in whole[:3])
    np.testing.assert_array_equal(samples_of(rest), samples_of(whole)[1920 * frames :])


MARKED_UP = "[mark:one] Hello there. [pause:330ms] [mark:two] This is a sentence. [pause:20ms]"


@pytest.mark.parametrize("cut", [None, 1, 2, 3, 4])
def test_silence_that_markup_asks_for_stays_where_it_is_and_as_it_is(
    open_engine: Opener, marks: ScriptedWatermark, cut: int | None
) -> None:
    options = {"seed": 1, "return_codes": True, "markup": "tags"}
    plain = list(open_engine().speak(MARKED_UP, **options))
    engine = open_engine(watermark="scripted")
    marked = list(engine.speak(MARKED_UP, **options))
    if cut is not None:
        marked = marked[:cut]
        marked += engine.speak_for("", MARKED_UP, after=Continuation.after(marked), **options)
    expected = [np.clip(chunk.pcm + ADDED, -1, 1) if chunk.frames else chunk.pcm for chunk in plain]
    np.testing.assert_array_equal(samples_of(marked), np.concatenate(expected))
    assert [mark for chunk in marked for mark in chunk.marks] == [mark for chunk in plain for mark in chunk.marks]
    assert [end for chunk in marked for end in chunk.ends] == [end for chunk in plain for end in chunk.ends]
    assert sum(len(chunk.pcm) for chunk in marked if not chunk.frames) == round(0.35 * 24_000)
    if cut is None:
        offsets = np.cumsum([0, *(len(chunk.pcm) for chunk in marked)])
        assert [chunk.sample_offset for chunk in marked] == list(offsets[:-1])


def test_an_event_loop_hears_the_same_and_may_stop_waiting(open_engine: Opener, marks: ScriptedWatermark) -> None:
    engine = open_engine(watermark="scripted")
    whole = engine.speak(TEXT, seed=1).read_all()

    async def listen() -> list[Chunk]:
        stream, chunks = engine.speak(TEXT, seed=1), []
        while True:
            try:
                chunks.append(await asyncio.wait_for(anext(stream), 1e-4))
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return chunks

    np.testing.assert_array_equal(samples_of(asyncio.run(listen())), whole)


def test_the_first_chunk_counts_when_it_is_heard(open_engine: Opener, marks: ScriptedWatermark) -> None:
    stream = open_engine(watermark="scripted").speak(TEXT)
    first = next(stream)
    assert stream.first_delivered_at == first.delivered_at > first.decoded_at


def test_cancelling_drops_what_is_held_back(open_engine: Opener, marks: ScriptedWatermark) -> None:
    stream = open_engine(fakes_with(frames=None), watermark="scripted").speak(TEXT)
    next(stream)
    stream.cancel()
    assert list(stream) == []
    assert stream.finish_reason == "cancelled"


def test_what_was_made_before_a_fault_is_heard(open_engine: Opener, marks: ScriptedWatermark) -> None:
    def fail(call: int) -> None:
        if call == 10:
            raise ValueError("broken")

    def speak(**settings: str) -> SpeechStream:
        return open_engine(Fakes(talkers={"fake": Behaviour(on_decode=fail)}), **settings).speak(TEXT, seed=1)

    plain, marked = heard_before(BackendFaultError, speak()), speak(watermark="scripted")
    chunks = heard_before(BackendFaultError, marked)
    np.testing.assert_array_equal(samples_of(chunks), np.clip(samples_of(plain) + ADDED, -1, 1))
    assert not any(chunk.final for chunk in chunks)
    assert marked.finish_reason == "error"


@pytest.mark.parametrize(
    ("model", "error"),
    [(ScriptedWatermark(fails_at=7), PluginError), (ScriptedWatermark(short=True), MalformedResultError)],
)
def test_speech_that_cannot_be_marked_ends(
    open_engine: Opener, monkeypatch: pytest.MonkeyPatch, model: ScriptedWatermark, error: type[Exception]
) -> None:
    use(monkeypatch, model)
    stream = open_engine(watermark="scripted").speak(TEXT, seed=1)
    frames = sum(chunk.frames for chunk in heard_before(error, stream))
    assert frames <= 30 - DELAY
    assert stream.finish_reason == "error"
    assert isinstance(stream.error, error)
    with pytest.raises(error):
        next(stream)


def test_an_unknown_watermark_is_refused_at_once(tiny_custom_voice: Checkpoint) -> None:
    with pytest.raises(SettingsError, match="setting 'watermark' is 'pert', and no installed package brings it"):
        Engine.open(checkpoint=tiny_custom_voice, watermark="pert")
