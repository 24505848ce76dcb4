"""Streaming speech from Qwen3-TTS, with interchangeable decode backends."""

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from megatalker.engine import BackendSwitch, Chunk, Engine, SpeechOptions, SpeechStream
from megatalker.interfaces import (
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
from megatalker.plugins import BackendRegistry, hookimpl
from megatalker.sampling import SamplingParams
from megatalker.serving.audio import WavWriter
from megatalker.settings import Settings
from megatalker.voices import Voice, VoiceCloner, read_reference

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
    "SpeechOptions",
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
