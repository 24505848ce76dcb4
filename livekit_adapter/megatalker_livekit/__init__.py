"""Streaming speech from Qwen3-TTS for LiveKit Agents, made by megatalker. Needs the extra ``livekit``."""

try:
    import livekit.agents  # noqa: F401 - so that its lack is explained
except ModuleNotFoundError as error:
    raise ImportError(
        f"cannot import megatalker_livekit: {error.name} is missing; pip install 'megatalker[livekit]'", name=error.name
    ) from None

from megatalker_livekit.plugin import register
from megatalker_livekit.tts import TTS

__all__ = ["TTS"]

register()
