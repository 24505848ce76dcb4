"""Measures backends side by side; the ``megatalker bench`` command shows the results."""

from megatalker.cli.bench.measure import Subject, measure
from megatalker.cli.bench.report import Report, save, table

__all__ = ["Report", "Subject", "measure", "save", "table"]
