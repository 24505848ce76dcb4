"""Kernels of the streaming codec: what they take, and how they are started."""
