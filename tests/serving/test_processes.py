"""Engines in processes of their own: the same speech as in this process, whatever becomes of the processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import process_backends
from megatalker.engine import Chunk, Engine, SpeechStream
from megatalker.errors import (
    BackendFaultError,
    BackendUnavailableError,
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    UnsupportedError,
)
from megatalker.serving.processes import supervisor as supervisor_module
from megatalker.serving.processes.host import SWITCH_S
from process_stage import TEXT, Opener, heard, made_by
from waiting import HANG_S, eventually

pytestmark = pytest.mark.slow


def in_threads(streams: list[SpeechStream]) -> list[tuple[bytes, bytes] | Exception]:
    """Codes and samples of each of these streams, or its error."""
    said: list[Any] = [None] * len(streams)

    def listen(place: int) -> None:
        try:
            said[place] = heard(streams[place])
        except Exception as error:
            said[place] = error

    threads = [threading.Thread(target=listen, args=(place,)) for place in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "it waits for ever"
    return said


# ---- the same engine, elsewhere


@pytest.mark.parametrize("text", [TEXT, "Good morning.\n\nHow are you?\n\nGood night."], ids=["one", "three"])
def test_speech_facts_and_words_are_those_of_an_engine_in_this_process(
    open_processes: Opener, here: Engine, text: str
) -> None:
    there = open_processes()
    streams = []
    for engine in (here, there):
        stream = engine.speak(text, seed=4, return_codes=True, word_times=True)
        said = heard(stream)
        facts = stream.facts()
        words = [(word.text, word.before) for word in stream.take_words()]
        streams.append((said, facts.frames, facts.segments, facts.finish_reason, facts.seed, facts.backend, words))
        assert stream.text_chars == len(text)
        assert facts.queue_wait_s is not None
        assert facts.ttfc_s is not None
        assert stream.prefilled_at is not None
    assert streams[0] == streams[1]
    assert [word for word, _ in streams[1][-1]] == text.split()


def test_text_that_is_fed_is_spoken_as_at_once_and_codes_come_only_if_asked_for(open_processes: Opener) -> None:
    engine = open_processes()
    expected = heard(engine.speak(TEXT, seed=5, layout="interleaved", return_codes=True))
    with engine.speak(None, seed=5, return_codes=True) as stream:
        for word in TEXT.split(" "):
            stream.feed(f"{word} ")
        stream.finish()
        assert heard(stream) == expected
    chunk = next(engine.speak(TEXT))
    assert (chunk.codes, chunk.ends) == (None, ())


def test_what_can_never_work_is_refused_at_once(open_processes: Opener) -> None:
    engine = open_processes()
    with pytest.raises(InvalidRequestError, match="klingon"):
        engine.speak(TEXT, language="klingon")
    with pytest.raises(InvalidRequestError, match="klingon"):
        engine.check(language="klingon")
    engine.check()
    engine.warmup()
    assert (engine.backend, engine.codec, engine.failure) == ("fake", "noise", None)


def test_a_full_engine_says_so_when_the_stream_is_read(open_processes: Opener) -> None:
    engine = open_processes(process_backends.endless, max_streams=1, max_waiting=0, max_frames=10**8)
    with engine.speak(TEXT) as occupant:
        next(occupant)
        with pytest.raises(CapacityError, match="1 streams run and 0 wait already"):
            engine.speak(TEXT).read_all()
    eventually(lambda: engine.metrics().cancelled == 1, "its slot is free again")
    assert len(next(engine.speak(TEXT)).pcm)


def test_audio_that_nobody_takes_is_not_made(open_processes: Opener) -> None:
    engine = open_processes(process_backends.endless, max_untaken_s=2.0, max_frames=10**8)
    with engine.speak(TEXT) as stream:
        next(stream)
        eventually(lambda: engine.metrics().frames >= 25, "two seconds are made")
        taken = 0
        while taken < 200:
            taken += next(stream).frames
            assert engine.metrics().frames < taken + 60, "not much more than two seconds lie untaken"


def test_streams_that_nobody_holds_are_cancelled(open_processes: Opener) -> None:
    engine = open_processes(process_backends.endless, max_frames=10**8)
    next(engine.speak(TEXT))
    eventually(lambda: engine.metrics().cancelled == 1, "its stream is gone")


def test_closing_ends_streams_and_processes(open_processes: Opener) -> None:
    engine = open_processes(process_backends.endless, max_frames=10**8)
    stream = engine.speak(TEXT)
    next(stream)
    (handle,) = engine.processes
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError, match="while this request was running"):
        list(stream)
    with pytest.raises(EngineClosedError, match="open a new one"):
        engine.speak(TEXT)
    eventually(lambda: not running(handle.pid), "its process is gone")


def test_a_backend_that_cannot_be_loaded_is_told_by_open(open_processes: Opener) -> None:
    with pytest.raises(BackendUnavailableError, match="no such device"):
        open_processes(process_backends.broken)


def test_a_forked_child_is_told_to_open_its_own(open_processes: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_processes()
    monkeypatch.setattr(engine, "_process", os.getpid() + 1)
    with pytest.raises(UnsupportedError, match="open an engine in the child"):
        engine.speak(TEXT)


def test_what_an_engine_logs_is_logged_here(open_processes: Opener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "megatalker"):
        open_processes()
        eventually(lambda: "engine 0: loading talker backend fake" in caplog.text, "its log is this one's")


def test_an_engine_waits_little_for_the_other_threads_of_its_process(
    open_processes: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    list(open_processes(process_backends.telling_its_interval).speak(TEXT))
    eventually(lambda: f"interval: {SWITCH_S:g} s" in caplog.text, "the engine has said so")


def test_an_owner_of_few_streams_need_not_wait_for_one_of_many(open_processes: Opener) -> None:
    engine = open_processes(engines=2, max_streams=2)
    heard_first: list[str] = []

    def listen(owner: str, seed: int) -> None:
        stream = engine.speak_for(owner, TEXT, seed=seed)
        next(stream)
        heard_first.append(owner)
        stream.read_all()

    def start(owner: str, count: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=listen, args=(owner, seed)) for seed in range(count)]
        for thread in threads:
            thread.start()
        return threads

    many = start("many", 16)
    eventually(lambda: heard_first, "the first owner's streams fill both engines")
    few = start("few", 2)
    for thread in many + few:
        thread.join(HANG_S)
    assert len(heard_first) == 18
    last = max(place for place, owner in enumerate(heard_first) if owner == "few")
    assert last < 12, "or it had to wait until hardly any of the other owner's were left"


# ---- a process that dies


@pytest.mark.parametrize(
    ("signal_", "voice"),
    [(signal.SIGKILL, None), (signal.SIGKILL, "serena:0.6+ryan:0.4"), (signal.SIGSEGV, None)],
    ids=["killed", "killed, mixed voice", "crashed"],
)
def test_nobody_hears_that_one_of_two_engines_died(
    open_processes: Opener, here: Engine, signal_: signal.Signals, voice: str | None
) -> None:
    alone = [heard(here.speak(TEXT, seed=seed, voice=voice, return_codes=True)) for seed in range(6)]
    engine = open_processes(engines=2)
    streams = [engine.speak(TEXT, seed=seed, voice=voice, return_codes=True) for seed in range(6)]
    first = [next(stream) for stream in streams]
    assert {made_by(stream).place for stream in streams} == {0, 1}, "both engines work"
    dead = made_by(streams[0])
    os.kill(dead.pid, signal_)
    rest = in_threads_after(first, streams)
    assert rest == alone
    eventually(lambda: dead not in engine.processes and len(engine.processes) == 2, "another takes its place")
    eventually(lambda: all(handle.able for handle in engine.processes), "which takes requests")


def in_threads_after(first: list[Chunk], streams: list[SpeechStream]) -> list[tuple[bytes, bytes]]:
    """All codes and samples of streams whose first chunks were taken."""
    said: list[Any] = [None] * len(streams)

    def listen(place: int) -> None:
        chunks = [first[place], *streams[place]]
        codes = [chunk.codes for chunk in chunks if chunk.codes is not None]
        said[place] = np.concatenate(codes).tobytes(), np.concatenate([chunk.pcm for chunk in chunks]).tobytes()

    threads = [threading.Thread(target=listen, args=(place,)) for place in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    return said


def test_utterances_wait_for_the_process_that_takes_the_place_of_the_only_one(
    open_processes: Opener, here: Engine
) -> None:
    words = TEXT.split(" ")
    expected = heard(here.speak(TEXT, seed=7, layout="interleaved", return_codes=True))
    engine = open_processes()
    stream = engine.speak(None, seed=7, return_codes=True)
    for word in words[:6]:
        stream.feed(f"{word} ")
    first = next(stream)
    os.kill(made_by(stream).pid, signal.SIGKILL)
    for word in words[6:]:  # to nobody, for now
        stream.feed(f"{word} ")
    stream.finish()
    assert in_threads_after([first], [stream]) == [expected]
    assert len(engine.speak(TEXT).read_all()), "others are served, too"


def test_the_wait_for_another_process_is_bounded(open_processes: Opener, tmp_path: Path, monkeypatch: Any) -> None:
    absent = tmp_path / "absent"
    monkeypatch.setenv(process_backends.ABSENT, str(absent))
    engine = open_processes(server={"engine_wait_s": 0.5})
    stream = engine.speak(TEXT)
    next(stream)
    absent.touch()
    os.kill(made_by(stream).pid, signal.SIGKILL)
    with pytest.raises(CapacityError, match="engine_wait_s"):
        list(stream)


def test_a_place_that_dies_again_and_again_is_given_up(
    open_processes: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent"
    monkeypatch.setenv(process_backends.ABSENT, str(absent))
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", 0.01)
    engine = open_processes()
    stream = engine.speak(TEXT)
    next(stream)
    absent.touch()
    os.kill(made_by(stream).pid, signal.SIGKILL)
    with pytest.raises(BackendFaultError, match="exit status 3"):
        list(stream)
    assert isinstance(engine.failure, BackendFaultError)
    with pytest.raises(BackendFaultError, match="no engine process can be kept up"):
        engine.speak(TEXT)


def test_a_request_that_kills_engines_ends_alone(open_processes: Opener, here: Engine) -> None:
    seeds = [1, process_backends.POISON, 2, 3]
    alone = [heard(here.speak(TEXT, seed=seed, return_codes=True)) for seed in seeds if seed != process_backends.POISON]
    engine = open_processes(process_backends.poisoned, engines=2)
    said = in_threads([engine.speak(TEXT, seed=seed, return_codes=True) for seed in seeds])
    assert isinstance(said[1], InvalidRequestError)
    assert "engine processes died at this request" in str(said[1])
    assert [one for one in said if not isinstance(one, Exception)] == alone


@pytest.mark.parametrize("engines", [1, 2])
def test_utterances_leave_an_engine_that_has_lost_its_device(
    engines: int, open_processes: Opener, here: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [heard(here.speak(TEXT, seed=seed, return_codes=True)) for seed in range(4)]
    lost = tmp_path / "lost"
    monkeypatch.setenv(process_backends.ABSENT, str(lost))
    engine = open_processes(process_backends.losing_its_device, engines=engines)
    before = engine.processes
    streams = [engine.speak(TEXT, seed=seed, return_codes=True) for seed in range(4)]
    first = [next(stream) for stream in streams]
    lost.touch()
    assert in_threads_after(first, streams) == alone
    eventually(lambda: len(set(engine.processes) - set(before)) == 1, "another process takes its place")


def test_a_device_that_is_lost_everywhere_is_told(
    open_processes: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "lost"
    monkeypatch.setenv(process_backends.ABSENT, str(lost))
    engine = open_processes(process_backends.losing_its_device)
    stream = engine.speak(TEXT)
    next(stream)

    def lose_all() -> None:
        while stream.finish_reason is None:
            lost.touch()
            time.sleep(0.01)

    loser = threading.Thread(target=lose_all)
    loser.start()
    with pytest.raises(BackendFaultError, match=r"the device is gone|exit status|signal 9"):
        list(stream)
    loser.join(HANG_S)


def test_an_engine_that_says_nothing_loses_its_utterances(open_processes: Opener, here: Engine) -> None:
    expected = heard(here.speak(TEXT, seed=8, return_codes=True))
    engine = open_processes(engines=2)
    stream = engine.speak(TEXT, seed=8, return_codes=True)
    first, stopped = next(stream), made_by(stream)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        assert in_threads_after([first], [stream]) == [expected]
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    eventually(lambda: not stopped.silent and stopped.able, "it serves again")
    assert stopped in engine.processes


def test_an_engine_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "from megatalker.serving.processes import ProcessEngine\n"
        "engine = ProcessEngine.open(device='cpu', checkpoint=None)\n"
        "print(engine.processes[0].pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    eventually(lambda: not running(pid), "nobody needs it any more")


def running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
