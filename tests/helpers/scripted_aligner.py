"""An aligner for tests: the words of a segment share the first half of its audio."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from megatalker.engine import aligned_words
from megatalker.plugins.aligner import Aligner, SpokenSegment


class ScriptedAligner(Aligner):
    """``fails``: it raises; ``short``: it leaves a word out; ``gate``: it works only once that is set;
    ``seconds``: it takes this long.
    """

    def __init__(
        self, *, fails: bool = False, short: bool = False, gate: threading.Event | None = None, seconds: float = 0.0
    ) -> None:
        self.fails, self.short, self.gate, self.seconds = fails, short, gate, seconds
        self.segments = list[SpokenSegment]()
        self.threads = set[str]()

    def align(self, segment: SpokenSegment) -> list[tuple[float, float]]:
        self.segments.append(segment)
        self.threads.add(threading.current_thread().name)
        if self.gate is not None:
            self.gate.wait()
        time.sleep(self.seconds)
        if self.fails:
            raise ValueError("deaf today")
        step = len(segment.samples) / 48_000 / len(segment.words)
        times = [(step * place, step * (place + 1)) for place in range(len(segment.words))]
        return times[self.short :]


def use(monkeypatch: pytest.MonkeyPatch, aligner: ScriptedAligner) -> ScriptedAligner:
    """Let the setting ``scripted`` mean this aligner."""

    def load(name: str) -> Aligner | None:
        return aligner if name == "scripted" else None

    monkeypatch.setattr("megatalker.engine.aligned_words.load_aligner", load)
    return aligner


@contextmanager
def use_hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAligner]:
    """Let the setting ``scripted`` mean an aligner that hangs within this context; streams wait for it a moment."""
    monkeypatch.setattr(aligned_words, "PATIENCE_S", 0.2)
    gate = threading.Event()
    yield use(monkeypatch, ScriptedAligner(gate=gate))
    gate.set()
