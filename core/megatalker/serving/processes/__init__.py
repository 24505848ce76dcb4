"""Engines in processes of their own, one for each device, behind the interface of one engine."""

from megatalker.serving.processes.engine import ProcessEngine

__all__ = ["ProcessEngine"]
