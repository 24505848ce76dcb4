"""The options of ``megatalker verify``."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from megatalker.errors import SettingsError, suggest

PARTS = ("configuration", "speed", "prompts", "cloning", "codes", "streams", "sampling", "16-bit", "codec", "words")
"""Parts of a report card, in this order: what is timed comes before the parts that fill the memory with other models.
"""
FRAMES = 24
WORD_ERRORS = 0.15


@dataclass(frozen=True, slots=True)
class Reach:
    """How far to look."""

    long_frames: int = 400
    """Frames of the longest stream, decoded one after another."""
    long_prompts: tuple[int, ...] = (200, 700, 1500)
    """Rows of long prompts."""
    draw_frames: int = 100
    """Frames of each stream whose draws are counted."""
    codec_frames: int = 1200
    """Frames of the longest stream of the codec."""
    budget_s: float = 60.0
    """After this many seconds of decoding a part goes no further, as it must on a slow device."""


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of a verification."""

    ref_audio: Path | None = None
    """A recording to clone, for ``base`` checkpoints."""
    ref_text: str | None = None
    """The words that are said in it."""
    frames: int = FRAMES
    """Compared in each mode; at least 8."""
    word_errors: float = WORD_ERRORS
    """The largest share of words that may be misheard."""
    recogniser: str | None = None
    """``MODULE:NAME``; ``None``: pocketsphinx."""
    skip: Collection[str] = ()
    """Parts to leave out, of :data:`PARTS`."""
    reach: Reach = field(default_factory=Reach)


def read_parts(text: str) -> frozenset[str]:
    """Comma-separated :data:`PARTS`.

    Raises:
        SettingsError: there is no such part.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in PARTS:
            raise SettingsError(f"a report card has no part {part!r}{suggest(part, PARTS)}")
    return frozenset(parts)
