from .engine import Engine
from .speech.options import SpeechOptions
from .speech.outputs import BackendSwitch, Chunk, Continuation, EngineMetrics, FinishReason, ReachedMark, StreamFacts
from .stream import SpeechStream

__all__ = [
    "BackendSwitch",
    "Chunk",
    "Continuation",
    "Engine",
    "EngineMetrics",
    "FinishReason",
    "ReachedMark",
    "SpeechOptions",
    "SpeechStream",
    "StreamFacts",
]
