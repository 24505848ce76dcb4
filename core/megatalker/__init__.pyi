from .checkpoint import Checkpoint
from .checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from .engine import BackendSwitch, Chunk, Engine, SpeechOptions, SpeechStream
from .interfaces import (
    API_VERSION,
    AVAILABLE,
    Availability,
    BackendSettings,
    Codec,
    CodecBackend,
    CodecCapabilities,
    CodecState,
    DecodeStep,
    Frame,
    FrameLogits,
    Limit,
    LoadContext,
    MemoryNeed,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from .plugins import BackendRegistry, hookimpl
from .plugins.stream_table import StreamTable
from .sampling import SamplingParams
from .serving.audio import WavWriter
from .serving.samples import SampleEncoder, SampleFrames
from .settings import Settings
from .voices import Voice, VoiceCloner, mix_voices, read_reference

__all__ = [
    "API_VERSION",
    "AVAILABLE",
    "FRAME_SAMPLES",
    "FRAME_SECONDS",
    "SAMPLE_RATE",
    "Availability",
    "BackendRegistry",
    "BackendSettings",
    "BackendSwitch",
    "Checkpoint",
    "Chunk",
    "Codec",
    "CodecBackend",
    "CodecCapabilities",
    "CodecState",
    "DecodeStep",
    "Engine",
    "Frame",
    "FrameLogits",
    "Limit",
    "LoadContext",
    "MemoryNeed",
    "SampleEncoder",
    "SampleFrames",
    "SamplingParams",
    "Settings",
    "SpeechOptions",
    "SpeechStream",
    "StreamHandle",
    "StreamRequest",
    "StreamTable",
    "TalkerBackend",
    "TalkerCapabilities",
    "TalkerDecoder",
    "Voice",
    "VoiceCloner",
    "WavWriter",
    "hookimpl",
    "mix_voices",
    "read_reference",
]
