"""Checkpoints in the official layout: configuration, tensors, tokenizer, download.

``Checkpoint`` is imported when it is first used, so that a checkpoint can be found before torch is there.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
