"""Streaming speech from Qwen3-TTS for Pipecat, made by megatalker."""

from megatalker_pipecat.engines import EnginePool, Lease
from megatalker_pipecat.service import MegatalkerTTSService
from megatalker_pipecat.settings import MegatalkerTTSSettings

__all__ = ["EnginePool", "Lease", "MegatalkerTTSService", "MegatalkerTTSSettings"]
