"""Layers whose matrices have 8 or 4 bits a weight, on processors: rounded once, kept on disk, run by ONNX Runtime."""
