"""The streaming codec's decoder on a CUDA device, as kernels of our own."""
