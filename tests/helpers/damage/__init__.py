"""Damaged copies of the package, each of which ``megatalker verify`` must call so."""

from damage.catalogue import DAMAGED, Damage

__all__ = ["DAMAGED", "Damage"]
