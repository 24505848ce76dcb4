"""The engine's own threads: whatever ends one ends the engine with an error, and nobody waits for ever."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.watchdog import Watchdog
from megatalker.engine.worker import Worker
from megatalker.errors import BackendFaultError, MegatalkerError
from megatalker.settings import Settings
from waiting import eventually

ODD: list[BaseException] = [RuntimeError("odd"), MemoryError(), SystemExit(3), KeyboardInterrupt()]


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("target", ["torch.set_num_threads", "Worker._fill", "Worker._warm_up"])
@pytest.mark.parametrize("error", ODD, ids=repr)
def test_an_engine_whose_worker_fails_at_the_start_does_not_open(
    tiny_custom_voice: Checkpoint, error: BaseException, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (torch, "set_num_threads") if target.startswith("torch") else (Worker, target.partition(".")[2])
    monkeypatch.setattr(*place, raising(error))
    with pytest.raises((type(error), MegatalkerError)):
        Engine.open(Settings(), checkpoint=tiny_custom_voice, registry=Fakes().registry).warmup()


@pytest.mark.parametrize("error", ODD, ids=repr)
def test_speech_ends_with_an_error_when_the_worker_fails(
    tiny_custom_voice: Checkpoint, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.open(Settings(), checkpoint=tiny_custom_voice, registry=Fakes().registry) as engine:
        engine.warmup()
        monkeypatch.setattr(Worker, "_tick", raising(error))
        with pytest.raises(BackendFaultError, match=type(error).__name__):
            engine.speak("Hello there.").read_all()
        with pytest.raises(BackendFaultError):
            engine.speak("Hello there.")


@pytest.mark.usefixtures("unrehearsed")
@pytest.mark.parametrize("step", ["_new_worker", "_replace_hung_worker"])
def test_a_watchdog_that_fails_ends_the_engine(
    tiny_custom_voice: Checkpoint, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import threading

    go_on = threading.Event()
    fakes = Fakes(talkers={"fake": Behaviour(frames=None, on_decode=lambda call: call > 3 and go_on.wait(60))})
    settings = Settings(step_deadline_s=0.4)
    engine = Engine.open(settings, checkpoint=tiny_custom_voice, registry=fakes.registry)
    engine.warmup()
    stream = engine.speak("Hello there.")
    monkeypatch.setattr(Watchdog, step, raising(RuntimeError("can't start new thread")))
    with pytest.raises(BackendFaultError, match="the engine failed: RuntimeError"):
        stream.read_all()
    assert "the engine's watchdog failed" in caplog.text
    eventually(lambda: engine.failure is not None, "it is told")
    go_on.set()
    engine.close()
