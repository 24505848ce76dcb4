"""Aligners: pocketsphinx and Qwen3-ForcedAligner."""
