"""A frame's way through the engine stays short enough to read."""

import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

import megatalker.engine
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine
from megatalker.engine.costs import Cost
from megatalker.settings import Settings

FOLDER = f"{Path(megatalker.engine.__file__).parent}/"
MOST_FILES = 13


def test_a_frame_passes_few_files(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose functions run between the first and the last chunk of a running stream, in worker and consumer."""
    seen: set[str] = set()
    recording = threading.Event()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        elsewhere = threading.current_thread().name == "megatalker-watchdog"
        if event == "call" and recording.is_set() and not elsewhere and frame.f_code.co_filename.startswith(FOLDER):
            seen.add(Path(frame.f_code.co_filename).name)

    monkeypatch.setattr(Cost, "observe", lambda cost, size, seconds, *, warm=True: None)  # how busy this machine is
    fakes = Fakes(talkers={"fake": Behaviour(frames=None)})
    threading.setprofile(trace)
    try:
        settings = Settings(max_frames=200, max_ahead_s=1.0)
        with Engine.open(settings, checkpoint=tiny_custom_voice, registry=fakes.registry) as engine:
            engine.warmup()
            stream = engine.speak("Hello there.", seed=1)
            sys.setprofile(trace)
            next(stream)
            recording.set()
            for _ in range(5):
                next(stream)
            recording.clear()
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert {
        "worker.py",
        "dispatcher.py",
        "scheduler.py",
        "talker_stage.py",
        "codec_stage.py",
        "utterance.py",
        "stream.py",
    } <= seen
    assert len(seen) <= MOST_FILES, sorted(seen)
