"""The choice of the engine that begins an utterance soonest."""

from collections.abc import Sequence

from megatalker.serving.processes.handle import EngineHandle


def choose(handles: Sequence[EngineHandle]) -> EngineHandle | None:
    """Return the engine that can begin one more utterance soonest, by what each said last; ``None``: none can.

    First come engines that are warm, then those where the wait for a slot is shortest, then those with the smallest
    share of the streams that they can sustain.
    """
    able = [handle for handle in handles if handle.able]
    return min(able, key=_delay, default=None)


def _delay(handle: EngineHandle) -> tuple[bool, float, float, int]:
    status = handle.status
    if status is None:
        return True, 0.0, float(handle.begun), handle.place
    metrics, most = status.metrics, handle.max_streams
    if metrics.sustainable is not None:
        most = min(most, metrics.sustainable)
    share = (metrics.active + metrics.waiting + handle.begun) / most
    return not handle.warm, status.wait_s or 0.0 if share >= 1 else 0.0, share, handle.place
