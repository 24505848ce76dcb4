from .engine import ProcessEngine

__all__ = ["ProcessEngine"]
