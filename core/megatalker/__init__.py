"""Streaming speech from Qwen3-TTS, with interchangeable decode backends."""
