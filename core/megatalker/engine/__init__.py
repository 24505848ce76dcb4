"""The engine: many streams on one talker backend and one codec, scheduled frame by frame.

Read :mod:`~megatalker.engine.engine` for what callers use, :mod:`~megatalker.engine.worker` for the loop,
:mod:`~megatalker.engine.state` for who owns what, and :mod:`~megatalker.engine.failover` for failures.
"""

from megatalker.engine.engine import Engine
from megatalker.engine.options import SpeechOptions
from megatalker.engine.outputs import BackendSwitch, Chunk, Continuation, EngineMetrics, FinishReason, StreamFacts
from megatalker.engine.stream import SpeechStream

__all__ = [
    "BackendSwitch",
    "Chunk",
    "Continuation",
    "Engine",
    "EngineMetrics",
    "FinishReason",
    "SpeechOptions",
    "SpeechStream",
    "StreamFacts",
]
