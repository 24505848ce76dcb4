"""Streaming speech from Qwen3-TTS, with interchangeable decode backends.

Names are imported when they are first used, as the stub file of this package lists them: ``import megatalker`` itself
takes no time, and the command line can answer before torch is there.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
