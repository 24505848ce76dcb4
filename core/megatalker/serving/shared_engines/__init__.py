"""Engines that adapters to voice-agent frameworks share among many conversations."""
