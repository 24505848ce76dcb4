"""Measure engines and servers: the commands ``megatalker bench`` and ``megatalker load``, and what every other
benchmark shares with them.
"""
