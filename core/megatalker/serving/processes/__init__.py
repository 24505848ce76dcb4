"""Engines in processes of their own, one for each device, behind the interface of one engine.

``ProcessEngine`` is imported when it is first used: the processes are started by one that needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
