"""Who goes next. Pure functions over what the worker knows about each stream."""

from collections.abc import Sequence
from dataclasses import dataclass

from megatalker.checkpoint.config import FRAME_SECONDS

UNBATCHED_STEPS = 2
"""Streams decoded per tick by a backend that takes them one after another: few, so that a newcomer waits little."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stream that could decode a frame now."""

    index: int
    """Position in the caller's list."""
    dry_at: float | None
    """When its playback runs out of audio; ``None`` while it has no audio yet."""
    requested_at: float


def urgency(candidate: Candidate) -> tuple[bool, float]:
    """Sort key: streams without audio first, oldest request first; then the one whose playback runs dry first."""
    if candidate.dry_at is None:
        return False, candidate.requested_at
    return True, candidate.dry_at


def select(candidates: Sequence[Candidate], *, batch: bool, limit: int) -> list[int]:
    """Indices of the streams that decode in this tick, most urgent first.

    Args:
        candidates: streams ready for a frame.
        batch: the backend decodes many streams at about the cost of one; otherwise only the most urgent few go, and
            none with audio in hand beside one that has none yet.
        limit: streams one call of the backend takes.
    """
    ordered = sorted(candidates, key=urgency)
    if not batch:
        starting = [candidate for candidate in ordered if candidate.dry_at is None]
        ordered = (starting or ordered)[:UNBATCHED_STEPS]
    return [candidate.index for candidate in ordered[:limit]]


def prefills_per_tick(*, batch: bool) -> int:
    """Prompts run between two frames of the streams that already speak."""
    return 2 if batch else 1


def chunk_limit(max_chunk_frames: int, max_ahead_s: float | None) -> int:
    """Frames of the largest chunk: half the lead that a stream may have, so that it never runs dry while it waits."""
    if max_ahead_s is None:
        return max_chunk_frames
    return max(1, min(max_chunk_frames, int(max_ahead_s / (2 * FRAME_SECONDS))))


def hold_until(dry_at: float, max_ahead_s: float, chunk_frames: int) -> float:
    """When a stream may begin its next chunk without getting further ahead of playback than ``max_ahead_s``.

    Two frames are always allowed: less cannot be played without gaps.
    """
    ahead = max(max_ahead_s, 2 * FRAME_SECONDS) - chunk_frames * FRAME_SECONDS
    return dry_at - max(ahead, FRAME_SECONDS)
