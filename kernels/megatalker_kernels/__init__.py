"""The megakernel: CUDA sources, their NVRTC recipe, weight packing, launching, an executable specification in torch.

Depends on torch, numpy and (to compile or launch) the ``cuda`` extra; knows neither checkpoints nor the engine.
"""
