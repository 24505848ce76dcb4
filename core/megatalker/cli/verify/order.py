"""The options of ``megatalker verify``."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from megatalker.errors import SettingsError, suggest

PARTS = ("configuration", "speed", "prompts", "cloning", "codes", "16-bit", "codec", "words")
"""Parts of a report card, in this order: what is timed comes before the parts that fill the memory with other models.
"""
FRAMES = 24
WORD_ERRORS = 0.15


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
