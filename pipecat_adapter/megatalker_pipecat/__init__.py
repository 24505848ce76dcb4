"""Streaming speech from Qwen3-TTS for Pipecat, made by megatalker. Needs the extra ``pipecat``."""

try:
    import loguru  # noqa: F401 - so that its lack, and Pipecat's, is explained
    import pipecat  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        f"cannot import megatalker_pipecat: {error.name} is missing; pip install 'megatalker[pipecat]'", name=error.name
    ) from None

from megatalker.serving.shared_engines.pool import EnginePool, Lease
from megatalker_pipecat.latency import TurnLatencyObserver
from megatalker_pipecat.service import MegatalkerTTSService
from megatalker_pipecat.settings import MegatalkerTTSSettings

__all__ = ["EnginePool", "Lease", "MegatalkerTTSService", "MegatalkerTTSSettings", "TurnLatencyObserver"]
