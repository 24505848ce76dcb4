"""Facts that the operating system knows about this process."""

import os
import time
from pathlib import Path


def process_age() -> float | None:
    """Seconds since this process was started, to 10 ms; ``None`` where the system does not tell (not Linux)."""
    try:
        text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    ticks = int(text.rpartition(")")[2].split()[19])  # starttime, field 22; the name before it may hold anything
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
