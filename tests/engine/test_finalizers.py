"""An engine that nobody holds ends wherever Python collects it, even in its own threads while they hold a lock."""

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import megatalker.engine
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.costs import RunningClock
from megatalker.errors import EngineClosedError
from megatalker.settings import Settings
from waiting import HANG_S

LOCKING = {f"{Path(megatalker.engine.__file__).parent}/{name}.py" for name in ("commands", "costs", "watchdog")}
"""Files with locks that the end of an engine takes."""
Line = tuple[str, int]
MOST_TEXTS = 200
"""Texts after which a line counts as one that does not come again, such as where the clock counts a pause."""


class Collector:
    """Ends an engine when one of its threads comes to a line, as a collection of garbage there would."""

    def __init__(self, at: Line | None = None) -> None:
        self.seen: set[Line] = set()
        self.finalizer: Callable[[], object] | None = None
        """Called once; nothing is seen before it is there."""
        self._at = at

    def trace(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename in {*LOCKING, threading.__file__} else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and self.finalizer is not None:
            self.seen.add(line)
            if line == self._at:
                finalizer, self.finalizer = self.finalizer, None
                finalizer()
        return self._line


def end_at(line: Line | None, checkpoint: Checkpoint) -> set[Line]:
    """Speak until an engine's thread comes to this line, where the engine ends; returns the lines its threads went
    through. ``None``, or where the line does not come again: it ends afterwards.
    """
    collector, before = Collector(line), set(threading.enumerate())
    threading.settrace(collector.trace)
    try:
        settings = Settings(step_deadline_s=0.2, short_speech="believe")  # the watchdog looks every ten milliseconds
        engine = Engine.open(settings, checkpoint=checkpoint, registry=Fakes(talkers={"fake": Behaviour()}).registry)
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    collector.finalizer = (lambda: None) if line is None else engine._closer

    def speak() -> None:
        with suppress(EngineClosedError):
            for _ in count() if line is None else range(MOST_TEXTS):
                if collector.finalizer is None:
                    return
                engine.speak("Hello there.", seed=1).read_all()
                engine.metrics()
                if line is None and any(name.endswith("watchdog.py") for name, _ in collector.seen):
                    break
        collector.finalizer = None
        engine.close()

    speaking = threading.Thread(target=speak, daemon=True)
    speaking.start()
    for thread in (speaking, *threads):
        thread.join(HANG_S)
        assert not thread.is_alive(), f"{thread.name} hangs: the engine ended at {line}"
    return collector.seen


def test_an_engine_ends_wherever_its_own_threads_collect_it(tiny_custom_voice: Checkpoint) -> None:
    lines = end_at(None, tiny_custom_voice)
    assert {name for name, _ in lines} >= LOCKING
    for line in sorted(lines):
        end_at(line, tiny_custom_voice)


def test_a_clock_can_be_read_while_this_thread_counts_a_pause() -> None:
    readings = iter([0.0, 10.0])

    def source() -> float:
        try:
            return next(readings)
        except StopIteration:  # the pause is being counted
            if not nested:
                nested.append(0.0)
                nested.append(clock())
            return 10.0

    nested = list[float]()
    clock = RunningClock(source, longest_gap_s=1.0)
    reading = threading.Thread(target=clock, daemon=True)
    reading.start()
    reading.join(HANG_S)
    assert not reading.is_alive(), "it waits for itself"
    assert clock.paused_s == pytest.approx(9.0), "counted once"
