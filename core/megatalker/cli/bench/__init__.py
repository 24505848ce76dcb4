"""Measures backends side by side; the ``megatalker bench`` command shows the results."""
