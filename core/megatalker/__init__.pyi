from .checkpoint import Checkpoint
from .checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from .engine import BackendSwitch, Chunk, Engine, SpeechStream
from .interfaces import (
    API_VERSION,
    AVAILABLE,
    Availability,
    BackendSettings,
    Capabilities,
    Codec,
    CodecBackend,
    CodecState,
    DecodeStep,
    Frame,
    FrameLogits,
    LoadContext,
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerDecoder,
)
from .plugins import BackendRegistry, hookimpl
from .sampling import SamplingParams
from .serving.audio import WavWriter
from .settings import Settings
from .voices import Voice, VoiceCloner, read_reference

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
    "Capabilities",
    "Checkpoint",
    "Chunk",
    "Codec",
    "CodecBackend",
    "CodecState",
    "DecodeStep",
    "Engine",
    "Frame",
    "FrameLogits",
    "LoadContext",
    "SamplingParams",
    "Settings",
    "SpeechStream",
    "StreamHandle",
    "StreamRequest",
    "TalkerBackend",
    "TalkerDecoder",
    "Voice",
    "VoiceCloner",
    "WavWriter",
    "hookimpl",
    "read_reference",
]
