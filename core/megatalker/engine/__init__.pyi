from .engine import Engine
from .options import SpeechOptions
from .outputs import BackendSwitch, Chunk, Continuation, EngineMetrics, FinishReason, ReachedMark, StreamFacts
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
