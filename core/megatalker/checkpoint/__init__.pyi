from .checkpoint import Checkpoint

__all__ = ["Checkpoint"]
