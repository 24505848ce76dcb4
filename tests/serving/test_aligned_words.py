"""Word times of an aligner over HTTP events, WebSockets, the client and engines in processes of their own."""

from collections.abc import Iterator
from typing import Any

import pytest

from client_stage import Pair
from megatalker.errors import SettingsError
from process_stage import Opener
from scripted_aligner import ScriptedAligner, use, use_hanging
from serving import Served, Server, events_of, fakes_with

SENTENCES = "One two three four. Five six seven eight."
BEGINS = [0, 0.2, 0.4, 0.6, 1.6, 1.8, 2.0, 2.2]
"""Two segments of 20 frames; the words share the first half of each."""
SETTINGS: dict[str, Any] = {"aligner": "scripted", "max_segment_chars": 24}


@pytest.fixture
def aligner(monkeypatch: pytest.MonkeyPatch) -> ScriptedAligner:
    return use(monkeypatch, ScriptedAligner())


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAligner]:
    with use_hanging(monkeypatch) as aligner:
        yield aligner


def words_of_a_socket(served: Served) -> tuple[list[dict[str, Any]], set[bool]]:
    talk = served.talk()
    talk.say("open", id="a", text=SENTENCES, word_times=True)
    events = [event for event in talk.hear_all("a").events if event["type"] == "words"]
    return [word for event in events for word in event["words"]], {event["estimated"] for event in events}


def assert_found(words: list[dict[str, Any]]) -> None:
    assert "".join(word["before"] + word["word"] for word in words) == SENTENCES
    assert [word["start"] for word in words] == pytest.approx(BEGINS)


def test_a_websocket_tells_them(serve: Server, aligner: ScriptedAligner) -> None:
    words, estimated = words_of_a_socket(serve(fakes_with(frames=20), **SETTINGS))
    assert_found(words)
    assert estimated == {False}


def test_a_websocket_does_not_wait_for_one_that_hangs(serve: Server, hanging: ScriptedAligner) -> None:
    words, estimated = words_of_a_socket(serve(fakes_with(frames=20), **SETTINGS))
    assert [word["word"] for word in words] == SENTENCES.split()
    assert estimated == {True}


def test_openai_s_events_tell_them(serve: Server, aligner: ScriptedAligner) -> None:
    served = serve(fakes_with(frames=20), **SETTINGS)
    told = [one for one in events_of(served, input=SENTENCES, word_timestamps=True) if "words" in one]
    assert_found([word for event in told for word in event["words"]])
    assert {event["estimated"] for event in told} == {False}


def test_the_client_passes_them_on(connect: Pair, aligner: ScriptedAligner) -> None:
    _, remote = connect(fakes_with(frames=20), **SETTINGS)
    stream = remote.speak(SENTENCES, word_times=True)
    stream.read_all()
    words = stream.take_words()
    assert [word.begins_s for word in words] == pytest.approx(BEGINS)
    assert not any(word.estimated for word in words)


def test_speech_of_another_process_is_aligned_in_this_one(open_processes: Opener, aligner: ScriptedAligner) -> None:
    stream = open_processes(**SETTINGS).speak(SENTENCES, word_times=True, language="en")
    pcm = stream.read_all()
    words = stream.take_words()
    assert "".join(word.before + word.text for word in words) == SENTENCES
    assert not any(word.estimated for word in words)
    assert sum(len(segment.samples) for segment in aligner.segments) == len(pcm)
    assert {segment.language for segment in aligner.segments} == {"english"}


def test_an_unknown_aligner_ends_no_process_with_a_riddle(open_processes: Opener) -> None:
    with pytest.raises(SettingsError, match="setting 'aligner' is 'sphynx', and no installed package brings it along"):
        open_processes(aligner="sphynx")
