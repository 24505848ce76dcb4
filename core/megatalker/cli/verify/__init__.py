"""Proves a checkpoint on one machine, and writes a report card."""
