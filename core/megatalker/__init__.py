"""Streaming speech from Qwen3-TTS, with interchangeable decode backends."""

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES, FRAME_SECONDS, SAMPLE_RATE
from megatalker.engine import BackendSwitch, Chunk, Engine, SpeechStream
from megatalker.interfaces import (
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
    StreamHandle,
    StreamRequest,
    TalkerBackend,
    TalkerCapabilities,
    TalkerDecoder,
)
from megatalker.plugins import BackendRegistry, hookimpl
from megatalker.plugins.stream_table import StreamTable
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
    "SamplingParams",
    "Settings",
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
    "read_reference",
]
