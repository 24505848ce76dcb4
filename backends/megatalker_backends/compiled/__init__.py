"""Talker backend in lean torch: packed weights, static rows of keys and values, compiled units, CUDA graphs."""
