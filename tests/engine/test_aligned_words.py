"""Word times from an aligner: told once a segment is over, in order, and never waited for without end."""

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_stage import Opener, fakes_with
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, SpeechStream, interpreter
from megatalker.engine import aligned_words as aligned
from megatalker.engine.speech.outputs import Continuation
from megatalker.engine.speech.word_times import BegunSegment, Pace, SpokenWord
from megatalker.errors import PluginError, SettingsError, UnsupportedError
from megatalker.plugins import installed
from megatalker.plugins.aligner import AlignerPlugin, load_aligner
from scripted_aligner import ScriptedAligner, use, use_hanging
from waiting import HANG_S, PROCESS_S, eventually

SENTENCES = "One two three four. Five six seven eight. Nine ten eleven."
SEGMENTS = ["One two three four.", "Five six seven eight.", "Nine ten eleven."]


@pytest.fixture
def aligner(monkeypatch: pytest.MonkeyPatch) -> ScriptedAligner:
    return use(monkeypatch, ScriptedAligner())


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAligner]:
    """It hangs until the end of the test."""
    with use_hanging(monkeypatch) as hanging:
        yield hanging


def open_aligned(open_engine: Opener, **settings: Any) -> Engine:
    return open_engine(fakes_with(frames=20), aligner="scripted", max_segment_chars=24, **settings)


def told_by(stream: SpeechStream) -> list[SpokenWord]:
    words = []
    for _ in stream:
        words += stream.take_words()
    return words + stream.take_words()


async def told_in_a_loop(stream: SpeechStream) -> list[SpokenWord]:
    words = []
    async for _ in stream:
        words += stream.take_words()
    return words + stream.take_words()


def text_of(words: list[SpokenWord]) -> str:
    return "".join(word.before + word.text for word in words)


def assert_found(words: list[SpokenWord]) -> None:
    """The times are those of the scripted aligner: 20 frames a segment, whose first half the words share."""
    assert text_of(words) == SENTENCES
    expected = [
        1.6 * place + 0.8 * n / len(text.split())
        for place, text in enumerate(SEGMENTS)
        for n in range(len(text.split()))
    ]
    assert [word.begins_s for word in words] == pytest.approx(expected)
    assert not any(word.estimated for word in words)


@pytest.mark.parametrize(
    "listen", [told_by, lambda stream: asyncio.run(told_in_a_loop(stream))], ids=["thread", "loop"]
)
def test_words_have_the_times_that_were_found(open_engine: Opener, aligner: ScriptedAligner, listen: Any) -> None:
    assert_found(listen(open_aligned(open_engine).speak(SENTENCES, word_times=True, language="en")))
    segments = sorted(aligner.segments, key=lambda segment: SEGMENTS.index(segment.text))
    assert [segment.text for segment in segments] == SEGMENTS
    assert [list(segment.words) for segment in segments] == [text.split() for text in SEGMENTS]
    assert {segment.language for segment in segments} == {"english"}
    assert all(name.startswith("megatalker-aligner") for name in aligner.threads)


def test_an_aligner_hears_the_audio_of_its_segment(open_engine: Opener, aligner: ScriptedAligner) -> None:
    stream = open_aligned(open_engine).speak(SENTENCES, word_times=True, seed=3)
    pcm = stream.read_all()
    segments = sorted(aligner.segments, key=lambda segment: SEGMENTS.index(segment.text))
    np.testing.assert_array_equal(np.concatenate([segment.samples for segment in segments]), pcm)
    assert [len(segment.samples) for segment in segments] == [20 * 1920] * 3
    assert_found(stream.take_words())
    assert stream.take_words() == []


def test_text_in_pieces_is_aligned(open_engine: Opener, aligner: ScriptedAligner) -> None:
    stream = open_aligned(open_engine).speak(None, word_times=True)
    for character in SENTENCES:
        stream.feed(character)
    stream.finish()
    words = told_by(stream)
    assert text_of(words) == SENTENCES
    assert not any(word.estimated for word in words)


def test_a_pause_is_not_part_of_a_segment(open_engine: Opener, aligner: ScriptedAligner) -> None:
    stream = open_aligned(open_engine).speak("One two.[pause:2s]Three four.", markup="tags", word_times=True)
    words = told_by(stream)
    assert [len(segment.samples) for segment in aligner.segments] == [20 * 1920] * 2
    assert [word.begins_s for word in words] == pytest.approx([0, 0.4, 3.6, 4.0])


def test_words_of_a_segment_come_before_the_speech_is_over(open_engine: Opener, aligner: ScriptedAligner) -> None:
    stream, early, taken_s = open_aligned(open_engine).speak(SENTENCES, word_times=True), [], 0.0
    for chunk in stream:
        taken_s += len(chunk.pcm) / 24_000
        time.sleep(0.01)
        early += (words := stream.take_words())
        assert all(word.ends_s <= taken_s for word in words)
    assert text_of(early).startswith(SEGMENTS[0])


@pytest.mark.parametrize("faults", [{"fails": True}, {"short": True}])
def test_where_it_fails_times_stay_estimates(
    open_engine: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, faults: dict[str, bool]
) -> None:
    use(monkeypatch, ScriptedAligner(**faults))
    words = told_by(open_aligned(open_engine).speak(SENTENCES, word_times=True))
    assert text_of(words) == SENTENCES
    assert all(word.estimated for word in words)
    assert [word.begins_s for word in words] == sorted(word.begins_s for word in words)
    said = [record.getMessage() for record in caplog.records if "stay estimates" in record.getMessage()]
    assert len(said) == len(SEGMENTS)
    assert ("deaf today" in said[0]) if "fails" in faults else ("shape [3, 2], expected [4, 2]" in said[0])


@pytest.mark.parametrize(
    "listen", [told_by, lambda stream: asyncio.run(told_in_a_loop(stream))], ids=["thread", "loop"]
)
def test_one_that_hangs_is_not_waited_for_without_end(open_engine: Opener, gated: ScriptedAligner, listen: Any) -> None:
    stream = open_aligned(open_engine).speak(SENTENCES, word_times=True)
    begin = time.monotonic()
    words = listen(stream)
    assert time.monotonic() - begin < 5
    assert text_of(words) == SENTENCES
    assert all(word.estimated for word in words)
    assert stream.take_words() == []


HANGING = """
import threading
import numpy as np
from megatalker.engine import aligned_words, interpreter
from megatalker.plugins.aligner import SpokenSegment

aligned_words.PATIENCE_S = interpreter.LEAVE_TIMEOUT_S = 0.1
begun = threading.Event()

class Hangs:
    def align(self, segment):
        begun.set()
        threading.Event().wait()

threads = aligned_words.AlignmentThreads("hangs", Hangs())
work = threads.submit(SpokenSegment("One.", ("One.",), None, np.zeros(1, np.float32)), [], 0.0)
assert begun.wait(HANG_S)
"""


@pytest.mark.slow
def test_a_process_ends_although_one_hangs() -> None:
    command = [sys.executable, "-c", HANGING.replace("HANG_S", str(HANG_S))]
    assert subprocess.run(command, timeout=PROCESS_S, check=False).returncode == interpreter.UNFINISHED_STATUS


@pytest.mark.parametrize(
    "listen", [told_by, lambda stream: asyncio.run(told_in_a_loop(stream))], ids=["thread", "loop"]
)
def test_a_slow_one_is_waited_for_at_the_end(open_engine: Opener, monkeypatch: pytest.MonkeyPatch, listen: Any) -> None:
    use(monkeypatch, ScriptedAligner(seconds=0.3))
    assert_found(listen(open_aligned(open_engine).speak(SENTENCES, word_times=True)))


def test_no_more_segments_wait_than_the_bound(
    open_engine: Opener, gated: ScriptedAligner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(aligned, "MOST_WAITING", 2)
    words = told_by(open_aligned(open_engine).speak(SENTENCES, word_times=True))
    assert text_of(words) == SENTENCES
    assert "2 segments wait for it" in caplog.text


def test_words_that_have_begun_wait_for_no_aligner(open_engine: Opener, gated: ScriptedAligner) -> None:
    def begun(**settings: Any) -> list[SpokenWord]:
        stream = open_engine(fakes_with(frames=20), max_segment_chars=24, **settings).speak(
            SENTENCES, word_times=True, seed=3
        )
        chunks = [next(stream) for _ in range(4)]
        words = stream.take_words(begun=True)
        assert chunks
        assert words
        for _ in stream:
            words += stream.take_words(begun=True)
        return words + stream.take_words(begun=True)

    start = time.monotonic()
    assert text_of(begun(aligner="scripted")) == SENTENCES == text_of(begun())
    assert time.monotonic() - start < 10


def test_a_cancelled_stream_tells_what_was_heard_as_estimates(open_engine: Opener, gated: ScriptedAligner) -> None:
    stream, taken_s = open_aligned(open_engine).speak(SENTENCES, word_times=True), 0.0
    while taken_s < 2.0:
        taken_s += len(next(stream).pcm) / 24_000
    assert stream.take_words() == []
    stream.cancel()
    words = stream.take_words()
    assert text_of(words).startswith(SEGMENTS[0])
    assert all(word.estimated for word in words)
    assert all(word.ends_s <= taken_s for word in words)


def test_cancelling_speech_that_was_made_to_its_end_is_the_same(open_engine: Opener, gated: ScriptedAligner) -> None:
    stream, taken_s = open_aligned(open_engine).speak(SENTENCES, word_times=True, max_ahead_s=60.0), 0.0
    eventually(lambda: stream.finish_reason == "eos", "the end of the speech")
    while taken_s < 2.0:
        taken_s += len(next(stream).pcm) / 24_000
    stream.cancel()
    assert text_of(stream.take_words()).startswith(SEGMENTS[0])


def test_a_segment_that_did_not_say_all_its_text_is_not_aligned(aligner: ScriptedAligner) -> None:
    clock = aligned.AlignedClock(Pace(), aligned.AlignmentThreads("scripted", aligner), "en")
    clock.feed("One two three four. Five.")
    clock.end_text()
    one, two = (
        BegunSegment(before, SimpleNamespace(text=text), begins_s)
        for before, text, begins_s in ((0, "One two three four.", 0.0), (15, "Five.", 1.0))
    )
    one.cut = True
    clock.hear(np.full(48_000, 0.5, np.float32), 0.0, [one, two])
    concurrent.futures.wait(clock.awaited(2.0, [one, two], complete=True))
    words = clock.rest(2.0, [one, two], complete=True)
    assert [segment.text for segment in aligner.segments] == ["Five."]
    assert [word.estimated for word in words] == [True] * (len(words) - 1) + [False]


def test_speech_that_was_cut_off_is_not_aligned(open_engine: Opener, aligner: ScriptedAligner) -> None:
    words = told_by(open_aligned(open_engine).speak(SENTENCES, word_times=True, max_frames=30))
    assert [segment.text for segment in aligner.segments] == SEGMENTS[:1]
    assert [word.estimated for word in words][:5] == [False] * 4 + [True] * (len(words) > 4)


def test_a_segment_that_another_engine_began_is_not_aligned(open_engine: Opener, aligner: ScriptedAligner) -> None:
    engine = open_aligned(open_engine)
    before = list(engine.speak(SENTENCES, seed=3, return_codes=True))[:3]
    stream = engine.speak_for("", SENTENCES, seed=3, word_times=True, after=Continuation.after(before))
    words = told_by(stream)
    assert SEGMENTS[0] not in [segment.text for segment in aligner.segments]
    assert not words[-1].estimated


def test_longer_segments_than_audio_is_kept_for(
    open_engine: Opener, aligner: ScriptedAligner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aligned, "LONGEST_S", 0.5)
    words = told_by(open_aligned(open_engine).speak(SENTENCES, word_times=True))
    assert text_of(words) == SENTENCES
    assert all(word.estimated for word in words)
    assert aligner.segments == []


def test_estimates_are_those_without_an_aligner(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(frames=20), max_segment_chars=24)
    words = told_by(engine.speak(SENTENCES, word_times=True))
    assert all(word.estimated for word in words)
    assert not [thread for thread in threading.enumerate() if "aligner" in thread.name]


# ---- how a plug-in is found


def test_an_unknown_aligner_is_refused_at_once(tiny_custom_voice: Checkpoint) -> None:
    with pytest.raises(SettingsError, match="setting 'aligner' is 'sphynx', and no installed package brings it along"):
        Engine.open(checkpoint=tiny_custom_voice, aligner="sphynx")


PLUGIN = AlignerPlugin("mine", "for tests", ScriptedAligner)
OLD = AlignerPlugin("mine", "for tests", ScriptedAligner, api_version=0)


def _fail() -> ScriptedAligner:
    raise RuntimeError("no weights")


def _miss() -> ScriptedAligner:
    raise UnsupportedError("needs the package x")


FAILING, MISSING = AlignerPlugin("mine", "for tests", _fail), AlignerPlugin("mine", "for tests", _miss)


@pytest.mark.parametrize(
    ("attribute", "error", "message"),
    [
        ("PLUGIN", None, ""),
        ("OLD", PluginError, "written for API version 0, this megatalker has 1"),
        ("SENTENCES", PluginError, "expected AlignerPlugin with the name 'mine'"),
        ("NOTHING", PluginError, "aligner 'mine' cannot be imported"),
        ("FAILING", PluginError, "aligner 'mine' cannot be loaded: RuntimeError: no weights"),
        ("MISSING", UnsupportedError, "needs the package x"),
    ],
)
def test_plug_ins_are_checked(
    monkeypatch: pytest.MonkeyPatch, attribute: str, error: type[Exception] | None, message: str
) -> None:
    entry = EntryPoint("mine", f"aligner_plugins_of_a_test:{attribute}", "megatalker.aligners")
    monkeypatch.setitem(sys.modules, "aligner_plugins_of_a_test", sys.modules[__name__])
    monkeypatch.setattr(installed, "entry_points", lambda group, name=None: [entry])
    if error is None:
        assert isinstance(load_aligner("mine"), ScriptedAligner)
        return
    with pytest.raises(error, match=message):
        load_aligner("mine")
