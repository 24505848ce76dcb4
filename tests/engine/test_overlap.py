"""While a device computes audio, the next frame is begun; nothing waits longer for that, and nothing is lost by it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from engine_stage import EngineClock
from fake_backend import CODEC_CAPABILITIES, Behaviour, FakeCodec, Fakes, FakeTalker
from late_audio import SlowDownload
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.codec_stage import Download, StepUnderWay
from megatalker.engine.dispatcher import LAUNCH_S
from megatalker.interfaces import DecodeStep, Frame
from megatalker.settings import Settings
from waiting import HANG_S

TEXT = "Hello there, this is a sentence of a few words."
FRAMES = 4


class Diary:
    """Events of a talker and of the audio, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def note(self, event: str) -> None:
        self.events.append(f"{event} {sum(other.startswith(event) for other in self.events)}")


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    diary = Diary()

    decode = FakeTalker.decode

    def begin(
        talker: FakeTalker, steps: Sequence[DecodeStep], *, return_logits: bool = False
    ) -> Callable[[], list[Frame]]:
        diary.note("begin")
        frames = decode(talker, steps)

        def finish() -> list[Frame]:
            diary.note("take")
            return frames

        return finish

    monkeypatch.setattr(FakeTalker, "decode", begin)
    monkeypatch.setattr(SlowDownload, "on_start", lambda: diary.note("start"))
    monkeypatch.setattr(SlowDownload, "on_wait", lambda: diary.note("hear"))
    monkeypatch.setattr("megatalker.engine.codec_stage.Download", SlowDownload)
    return diary


def prompt_beside_audio_under_way(
    checkpoint: Checkpoint, diary: Diary, monkeypatch: pytest.MonkeyPatch, *, dry_in_s: float
) -> list[str]:
    """Events of a stream, and of another that is asked for while audio of the first, "hear 3", is computed: its
    playback runs dry so soon without that.
    """
    started, asked = threading.Event(), threading.Event()

    def note_and_let_another_ask() -> None:
        diary.note("start")
        if diary.events[-1] == "start 3":
            started.set()
            wait_for(asked)
            monkeypatch.setattr(StepUnderWay, "dry_at", time.monotonic() + dry_in_s)

    monkeypatch.setattr(SlowDownload, "on_start", note_and_let_another_ask)
    fakes = Fakes(talkers={"fake": Behaviour(frames=None, on_prefill=lambda _: diary.note("prompt"))})
    with open_engine(checkpoint, fakes) as engine:
        first = engine.speak(TEXT, seed=1, max_frames=6)
        wait_for(started)
        second = engine.speak(TEXT, seed=2, max_frames=2)
        asked.set()
        second.read_all()
        assert sum(chunk.frames for chunk in first) == 6
    return diary.events


def open_engine(checkpoint: Checkpoint, fakes: Fakes, **settings: object) -> Engine:
    own = Settings(max_chunk_frames=1, short_speech="believe", **settings)
    return Engine.open(own, checkpoint=checkpoint, registry=fakes.registry)


def test_each_frame_is_begun_before_the_audio_of_the_frame_before_is_waited_for(
    tiny_custom_voice: Checkpoint, diary: Diary
) -> None:
    with open_engine(tiny_custom_voice, Fakes(talkers={"fake": Behaviour(frames=None)})) as engine:
        stream = engine.speak(TEXT, seed=1, max_frames=FRAMES)
        assert [chunk.frames for chunk in stream] == [1] * FRAMES
    expected = ["begin 0", "take 0", "start 0", "hear 0"]  # a first chunk is waited for at once
    for frame in range(1, FRAMES):
        heard = [f"hear {frame - 1}"] if frame > 1 else []
        expected += [f"begin {frame}", *heard, f"take {frame}", f"start {frame}"]
    assert diary.events == [*expected, f"hear {FRAMES - 1}"]


def test_the_next_step_of_audio_is_started_before_the_one_before_is_waited_for(
    tiny_custom_voice: Checkpoint, diary: Diary, engine_clock: EngineClock
) -> None:
    one_stream = {"noise": Behaviour(codec_capabilities=replace(CODEC_CAPABILITIES, max_streams=1))}
    fakes = Fakes(talkers={"fake": Behaviour(frames=2)}, codecs=one_stream)
    with open_engine(tiny_custom_voice, fakes, max_streams=3) as engine:
        with engine.borrow_backends():
            streams = [engine.speak(TEXT, seed=seed) for seed in range(3)]
        for stream in streams:
            stream.read_all()
    audio = [event for event in diary.events if "begin" not in event and "take" not in event]
    assert audio[:6] == ["start 0", "start 1", "hear 0", "start 2", "hear 1", "hear 2"], "first chunks"
    assert audio[6:] == ["start 3", "start 4", "hear 3", "start 5", "hear 4", "hear 5"]


def test_states_of_the_codec_are_made_while_first_frames_are(
    tiny_custom_voice: Checkpoint, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = FakeCodec.open
    monkeypatch.setattr(FakeCodec, "open", lambda codec: (diary.note("open"), make(codec))[1])
    with open_engine(tiny_custom_voice, Fakes(talkers={"fake": Behaviour(frames=2)})) as engine:
        engine.speak(TEXT, seed=1).read_all()
    assert diary.events[:4] == ["begin 0", "open 0", "take 0", "start 0"]
    assert "open 1" not in diary.events


def test_a_prompt_waits_for_audio_without_which_somebodys_playback_runs_dry_at_once(
    tiny_custom_voice: Checkpoint, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is built and launched, nothing is handed out."""
    order = prompt_beside_audio_under_way(tiny_custom_voice, diary, monkeypatch, dry_in_s=LAUNCH_S / 2)
    assert order.index("hear 3") < order.index("prompt 1")


def test_a_prompt_does_not_wait_for_audio_that_a_device_computes(
    tiny_custom_voice: Checkpoint, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = prompt_beside_audio_under_way(tiny_custom_voice, diary, monkeypatch, dry_in_s=60.0)
    assert order.index("prompt 1") < order.index("hear 3") < order.index("start 4")


@pytest.mark.parametrize("call", ["begin", "take"])
def test_audio_does_not_wait_for_the_successor_of_a_talker_that_fails(
    tiny_custom_voice: Checkpoint, diary: Diary, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    held = threading.Event()
    behaviours = {"first": Behaviour(frames=None), "second": Behaviour(frames=None, on_load=lambda: wait_for(held))}
    note = diary.note

    def note_and_fail(event: str) -> None:
        note(event)
        if diary.events[-1] == f"{call} 2":
            raise RuntimeError("device lost")

    monkeypatch.setattr(diary, "note", note_and_fail)
    with open_engine(tiny_custom_voice, Fakes(talkers=behaviours)) as engine:
        stream = engine.speak(TEXT, seed=1, max_frames=FRAMES, return_codes=True)
        chunks = [next(stream), next(stream)]  # both frames that were made
        held.set()
        chunks += stream
    assert [switch.frame for switch in stream.switches] == [2]
    np.testing.assert_array_equal([chunk.codes for chunk in chunks], codes_alone(tiny_custom_voice))


@pytest.mark.usefixtures("unrehearsed")
@pytest.mark.parametrize(("hanging", "kind"), [("hear 1", "codec"), ("begin 2", "talker")])
def test_what_is_under_way_survives_the_other_backend_that_hangs(
    tiny_custom_voice: Checkpoint, diary: Diary, monkeypatch: pytest.MonkeyPatch, hanging: str, kind: str
) -> None:
    """A frame that was begun, when the codec hangs; audio on its way, when the talker does."""
    released, note = threading.Event(), diary.note

    def note_and_hang(event: str) -> None:
        note(event)
        if diary.events[-1] == hanging:
            wait_for(released)

    monkeypatch.setattr(diary, "note", note_and_hang)
    two = {"first": Behaviour(frames=None), "second": Behaviour(frames=None)}
    fakes = Fakes(talkers=two) if kind == "talker" else Fakes(codecs=two)
    with open_engine(tiny_custom_voice, fakes, step_deadline_s=1.0) as engine:
        engine.warmup()
        found = engine.speak(TEXT, seed=1, max_frames=FRAMES)
        pcm = found.read_all()
        released.set()
        assert [switch.kind for switch in found.switches] == [kind]
    with open_engine(tiny_custom_voice, Fakes()) as engine:
        np.testing.assert_array_equal(pcm, engine.speak(TEXT, seed=1, max_frames=FRAMES).read_all())


def test_a_frame_begun_before_its_stream_ran_away_is_not_heard(
    tiny_custom_voice: Checkpoint, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_silent(call: int, chunks: list[Tensor]) -> list[Tensor]:
        return [0 * chunk for chunk in chunks] if call > 20 else chunks

    def frames_heard() -> int:
        fakes = Fakes({"fake": Behaviour(frames=None)}, {"silent": Behaviour(spoil=fall_silent)})
        with open_engine(tiny_custom_voice, fakes) as engine:
            stream = engine.speak(TEXT, seed=1, max_frames=400)
            heard = sum(chunk.frames for chunk in stream)
            assert stream.finish_reason == "runaway"
            return heard

    late = frames_heard()
    monkeypatch.setattr("megatalker.engine.codec_stage.Download", Download)
    assert late == frames_heard()


def wait_for(event: threading.Event) -> None:
    assert event.wait(HANG_S)


def codes_alone(checkpoint: Checkpoint) -> list[np.ndarray]:
    with open_engine(checkpoint, Fakes(talkers={"fake": Behaviour(frames=None)})) as engine:
        return [chunk.codes for chunk in engine.speak(TEXT, seed=1, max_frames=FRAMES, return_codes=True)]
