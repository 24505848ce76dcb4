"""What Python's garbage collector need not look at."""

import gc


def spare_what_is_loaded() -> None:
    """Exclude all objects of now from garbage collection. For a process that keeps its engine until it ends.

    Libraries and weights are some hundred thousand objects that stay: each full collection looks at all of them, in a
    pause of about 0.1 s in which no stream gets anything.
    """
    gc.collect()
    gc.freeze()
