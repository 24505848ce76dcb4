"""How Python's interpreter runs a process that lives for its engine. Both concern the whole process, so that a program
which only happens to hold an engine is left as it is.
"""

import gc
import sys

SWITCH_S = 0.0005
YOUNG_BEFORE_FULL = 1000
"""Collections of younger objects before a full one, for 10."""


def spare_what_is_loaded() -> None:
    """Exclude all objects of now from garbage collection, and let full collections be rare: for a process that keeps
    its engine until it ends.

    Libraries and weights are some hundred thousand objects that stay: each full collection looks at all of them, in a
    pause of about 0.1 s in which no stream gets anything. What 500 streams hold takes 20 ms, every two seconds.
    """
    gc.collect()
    gc.freeze()
    youngest, young, _ = gc.get_threshold()
    gc.set_threshold(youngest, young, YOUNG_BEFORE_FULL)


def switch_threads_often() -> None:
    """Let the engine's thread have Python's lock again within half a millisecond, not five.

    Every call of torch gives it up, and consumers that have just been handed audio take it.
    """
    sys.setswitchinterval(SWITCH_S)
