"""The engine: many streams on one talker backend and one codec, scheduled frame by frame.

Read :mod:`~megatalker.engine.engine` for what callers use, :mod:`~megatalker.engine.worker` for the loop,
:mod:`~megatalker.engine.state` for who owns what, and :mod:`~megatalker.engine.failover` for failures.

Names are imported when they are first used, so that a supervisor of engine processes needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
