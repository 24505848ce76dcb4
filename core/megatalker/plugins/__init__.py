"""Backends as plug-ins: how they are found, checked and chosen."""

from megatalker.plugins.registry import BackendRegistry, computing_dtype, hookimpl, probe

__all__ = ["BackendRegistry", "computing_dtype", "hookimpl", "probe"]
