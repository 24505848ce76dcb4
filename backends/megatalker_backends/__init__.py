"""Decode backends that come with megatalker, one folder each."""
