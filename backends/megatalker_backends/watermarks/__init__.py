"""Watermarks by Perth and AudioSeal."""
