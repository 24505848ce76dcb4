"""Loads on an engine of fake backends, and what is reported of them."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fake_backend import Behaviour, Fakes, ends_after
from megatalker.checkpoint import Checkpoint
from megatalker.cli.bench.drive import SETTLE_S, LoadResult, Script, drive, listening_to
from megatalker.cli.bench.load_report import LoadCase, LoadReport, errors, plot, table
from megatalker.cli.bench.report import save
from megatalker.cli.bench.traffic import Traffic
from megatalker.engine import Engine, SpeechStream
from megatalker.engine.speech.protocols import SpeechEngine
from megatalker.settings import Settings
from waiting import HANG_S

Opener = Callable[..., Engine]
SHORT = Script(length_s=0.8)


@pytest.fixture
def open_engine(tiny_custom_voice: Checkpoint) -> Iterator[Opener]:
    engines: list[Engine] = []

    def opener(on_decode: Callable[[int], object] = lambda call: None, **settings: Any) -> Engine:
        fakes = Fakes(talkers={"fake": Behaviour(frames=None, on_decode=on_decode)})
        engines.append(Engine.open(Settings(**settings), checkpoint=tiny_custom_voice, registry=fakes.registry))
        return engines[-1]

    yield opener
    for engine in engines:
        engine.close()


def play(engine: SpeechEngine, traffic: Traffic, script: Script = SHORT, seconds: float = 1.0) -> LoadResult:
    return asyncio.run(drive(listening_to(engine), traffic, script, seconds))


@pytest.mark.slow
def test_a_burst_is_heard_to_its_length(open_engine: Opener) -> None:
    heard = play(open_engine(), Traffic("burst", 5), seconds=2.0)
    assert [player.audio_s for player in heard.playbacks] == pytest.approx([0.8] * 5)
    assert all(player.audible_at >= player.first_at > player.requested_at for player in heard.playbacks)
    assert heard.audio_s == pytest.approx(4.0)


@pytest.mark.slow
def test_endless_streams_are_followed_by_others_and_end_with_the_load(open_engine: Opener) -> None:
    engine = open_engine(max_frames=50)  # an endless stream of this engine ends after 4 s
    heard = play(engine, Traffic("streams", 2), seconds=1.5)
    assert len(heard.playbacks) > 2
    assert not any(player.error for player in heard.playbacks)
    assert engine.metrics().active + engine.metrics().waiting <= 2


def test_the_engine_may_settle_before_another_load(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled_at, cancel = [], SpeechStream.cancel

    def noted(stream: SpeechStream) -> None:
        cancelled_at.append(time.monotonic())
        cancel(stream)

    monkeypatch.setattr(SpeechStream, "cancel", noted)
    play(open_engine(), Traffic("streams", 2), seconds=0.2)
    assert len(cancelled_at) >= 2
    assert time.monotonic() - max(cancelled_at) >= SETTLE_S


def test_requests_that_are_refused_are_counted_by_kind(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, all_asked = itertools.count(1), threading.Event()
    engine = open_engine(lambda call: all_asked.wait(HANG_S), max_streams=1, max_waiting=1)
    speak = engine.speak

    def counted(*arguments: Any, **options: Any) -> Any:
        try:
            return speak(*arguments, **options)
        finally:
            if next(asked) == 4:
                all_asked.set()

    monkeypatch.setattr(engine, "speak", counted)
    case = LoadCase.of(play(engine, Traffic("burst", 4)), None)
    assert case.errors == {"CapacityError": 2}
    assert (case.requests, case.heard, case.borne) == (4, 2, False)
    heard_all = replace(case, errors={})
    assert errors(LoadReport("", {}, {}, {}, [case, heard_all])) == ["errors of 4 at once: 2 CapacityError"]


@pytest.mark.slow
def test_text_can_be_fed_word_by_word(open_engine: Opener) -> None:
    script = Script(texts=["one two three four"], length_s=0.4, words_a_second=50)
    heard = play(open_engine(), Traffic("burst", 2), script, seconds=1.0)
    assert all(player.error is None and player.audio_s > 0 for player in heard.playbacks)


@pytest.mark.slow
def test_reports_can_be_read_by_people_and_programs(open_engine: Opener, tmp_path: Path) -> None:
    engine = open_engine()
    loads = [Traffic("streams", 2), Traffic("rate", 20), Traffic("burst", 3)]
    cases = [LoadCase.of(play(engine, traffic, seconds=0.5), {"frames": 1}) for traffic in loads]
    report = LoadReport(
        "megatalker load", {"checkpoint": "tiny"}, {"max_streams": 8}, {"ahead_s": None}, cases, capacity=2
    )
    assert table(report).row_count == 3
    written = save(report, tmp_path, "load", partial(plot, report))
    assert [path.name for path in written] == ["load.json", "load.png"]
    found = json.loads(written[0].read_text())
    assert [case["pattern"] for case in found["cases"]] == ["streams", "rate", "burst"]
    assert set(found["cases"][2]["first_chunk_ms"]) == {"p50", "p95", "p99", "max"}
    assert found["cases"][0]["speech_s_per_s"] > 0
    assert found["capacity"] == 2


def test_a_load_without_any_audio_is_reported_as_silent() -> None:
    case = LoadCase.of(LoadResult(Traffic("rate", 1), 1.0, [], 0.0, 0.0), None)
    assert (case.first_chunk_ms, case.requests, case.worst_gap_ms) == (None, 0, 0.0)


def test_speech_that_leaves_text_out_is_an_error_unless_it_is_endless(tiny_custom_voice: Checkpoint) -> None:
    settings = Settings(max_segment_frames=10)
    with Engine.open(settings, checkpoint=tiny_custom_voice, registry=ends_after(None).registry) as engine:
        natural = play(engine, Traffic("burst", 2), Script(length_s=None), seconds=0.5)
        assert [player.error for player in natural.playbacks] == ["IncompleteSpeechError"] * 2
        endless = play(engine, Traffic("streams", 1), seconds=0.5)
        assert len(endless.playbacks) > 1
        assert not any(player.error for player in endless.playbacks)


def test_a_load_whose_own_work_fails_says_so(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals are counted; a bug in the writer or listener of a request ends the load."""
    engine = open_engine(max_frames=50)

    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    for target, script in ((SpeechStream, replace(SHORT, words_a_second=50.0)), (Script, SHORT)):
        with monkeypatch.context() as patch:
            patch.setattr(target, "feed" if target is SpeechStream else "options", fail)
            with pytest.raises(KeyError, match="a bug"):
                play(engine, Traffic("burst", 1), script, seconds=0.5)
