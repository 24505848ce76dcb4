"""The choice of the engine that begins an utterance soonest."""

from collections.abc import Sequence

from megatalker.serving.processes.handle import EngineHandle


def choose(handles: Sequence[EngineHandle], reference: bytes | None = None) -> EngineHandle | None:
    """Return the engine that can begin one more utterance soonest, by what each said last; ``None``: none can.

    First come engines that are warm, then those where the wait for a slot is shortest, then those with the smallest
    share of the streams that they can sustain. One that has heard the voice's recording has one stream less to make.

    Args:
        handles: the engines there are.
        reference: :attr:`Voice.reference_digest <megatalker.voices.Voice.reference_digest>` of the utterance's voice.
    """
    able = [handle for handle in handles if handle.able]
    return min(able, key=lambda handle: _delay(handle, reference), default=None)


def _delay(handle: EngineHandle, reference: bytes | None) -> tuple[bool, float, float, bool, int]:
    status = handle.status
    if status is None:
        return True, 0.0, float(handle.begun), False, handle.place
    metrics, most = status.metrics, handle.max_streams
    if metrics.sustainable is not None:
        most = min(most, metrics.sustainable)
    share = (metrics.active + metrics.waiting + handle.begun) / most
    wait_s = status.wait_s or 0.0 if share >= 1 else 0.0
    heard = handle.has_heard(reference)
    return not handle.warm, wait_s, share - heard / most, not heard, handle.place
