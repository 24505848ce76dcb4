"""Things that a talker prepares in the background: reported, taken into use in a pause, done without if it fails."""

import logging
from dataclasses import dataclass
from unittest.mock import Mock

import pytest

from engine_stage import TEXT, Opener, codes_of, fakes_with, plain_codes
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import preparation
from megatalker.engine.backend_role import LoadedBackend
from megatalker.engine.preparation import LATEST_S, PAUSE_S, POLL_S, go_on
from megatalker.engine.scheduler import StreamStatus
from megatalker.serving.server.defaults import served_settings
from megatalker.settings import Settings
from waiting import eventually

WHAT = "frames of 4 streams"


@dataclass
class Prepare:
    """A backend's own, with what it answers in order."""

    answers: list[object]
    asked: int = 0

    def __call__(self) -> str | None:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value] # some are wrong


@pytest.fixture(autouse=True)
def _asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "POLL_S", 0.001)


def test_a_talker_is_asked_after_warm_up_until_nothing_is_left(open_engine: Opener) -> None:
    prepare = Prepare([WHAT, WHAT, None])
    engine = open_engine(fakes_with(on_prepare=prepare))
    engine.warmup()
    eventually(lambda: prepare.asked == 3, "though nothing else happens")
    engine.speak(TEXT).read_all()
    assert prepare.asked == 3
    assert engine.metrics().preparing is engine.metrics().unprepared is None


def test_streams_run_while_something_is_prepared(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    done = False
    engine = open_engine(fakes_with(on_prepare=lambda: None if done else WHAT))
    assert engine.metrics().preparing is None
    engine.warmup()
    eventually(lambda: engine.metrics().preparing == WHAT, "it was asked")
    expected = plain_codes(tiny_custom_voice, TEXT, 3, "upfront", frames=30)
    assert codes_of(engine.speak(TEXT, seed=3, return_codes=True)) == expected
    assert engine.metrics().preparing == WHAT
    done = True
    eventually(lambda: engine.metrics().preparing is None, "it is there")
    assert codes_of(engine.speak(TEXT, seed=3, return_codes=True)) == expected


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("no room on the disk"), "RuntimeError: no room on the disk"),
        (7, "MalformedResultError: prepare returned int, expected what is prepared, or None"),
    ],
)
def test_a_talker_goes_on_without_what_it_cannot_prepare(
    open_engine: Opener, caplog: pytest.LogCaptureFixture, answer: object, reason: str
) -> None:
    prepare = Prepare([WHAT, answer])
    engine = open_engine(Fakes(talkers={"first": Behaviour(on_prepare=prepare), "second": Behaviour()}))
    with caplog.at_level(logging.ERROR, logger="megatalker"):
        engine.warmup()
        eventually(lambda: engine.metrics().unprepared == reason, "it was asked twice")
    assert [record.getMessage() for record in caplog.records] == [
        f"talker backend first goes on without {WHAT}: {reason}"
    ]
    engine.speak(TEXT).read_all()
    metrics = engine.metrics()
    assert (metrics.preparing, metrics.faulty, metrics.backend) == (None, {}, "first")
    assert prepare.asked == 2


@pytest.mark.parametrize(("warmup", "early"), [(None, False), ("all", False), ("first", True)])
def test_a_server_warms_up_early_unless_told_otherwise(open_engine: Opener, warmup: str | None, early: bool) -> None:
    fakes = Fakes()
    open_engine(fakes, warmup=warmup)
    assert fakes.loaded["fake"].early is early
    assert served_settings(Settings(warmup=warmup)).warmup == (warmup or "first")


def test_a_pause_waits_for_audio_in_hand_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "POLL_S", POLL_S)
    calls, talker = Mock(prepare=Mock(return_value=WHAT)), LoadedBackend("talker", "fake", Mock(), prepare_at=0.0)
    stream = Mock(pending=0, status=StreamStatus.RUNNING)
    stream.chunks.is_full.return_value = False

    def asked_at(now: float, spare_s: float) -> bool:
        calls.prepare.reset_mock()
        stream.progress.playback.ahead.return_value = spare_s
        go_on(calls, talker, [stream], now)
        return bool(calls.prepare.called)

    assert not asked_at(1.0, PAUSE_S / 2)
    assert asked_at(1.0, PAUSE_S)
    assert (talker.preparing, talker.prepare_at) == (WHAT, 1.0 + POLL_S)
    assert not asked_at(LATEST_S, -5.0)
    assert asked_at(1.0 + POLL_S + LATEST_S, -5.0)
    talker.prepare_at = 0.0
    stream.status = StreamStatus.STARVED
    assert asked_at(1.0, 0.0), "it needs text, not the device"
    stream.pending = 1
    assert not asked_at(1.0, 0.0)
    stream.chunks.is_full.return_value = True
    assert asked_at(1.0, 0.0), "its consumer takes nothing"
