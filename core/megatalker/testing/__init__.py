"""Synthetic checkpoints in the official layout, for tests and measurements; the engine imports nothing from here."""
