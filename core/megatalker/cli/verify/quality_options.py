"""The options of ``megatalker verify --quality``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatalker.errors import SettingsError

SIZE, SEEDS = 100, 2
FOLDER = Path("quality")
CONTROL, OURS = "official", "ours"
"""Names of the two sides of a trial; those of other forms are the forms'."""
FORMS = ("int8", "int4", "fast")
"""Faster forms of ours: weights of ``compiled`` in 8 or 4 bits, and the codec ``streaming`` with rounded products."""


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """The options of a trial."""

    out: Path = FOLDER
    """Folder of the recordings, records and reports; a run that was broken off goes on there."""
    prompts: str | None = None
    """``seed-tts-eval``, with ``/en`` or ``/zh`` and ``@REVISION``; a folder, a list or a file of texts. ``None``:
    those that come along."""
    size: int | None = SIZE
    """How many prompts; ``None``: all."""
    seeds: int = SEEDS
    """Takes of each prompt on each side; at least 1."""
    own_seeds: Sequence[int] | None = None
    """Seeds of our forms, if they are others than the official side's, which are 1, 2 and so on."""
    digest: str | None = None
    """SHA-256 that the prompts must have."""
    ref_audio: Path | None = None
    ref_text: str | None = None
    """A recording to clone for all prompts, and what is said there."""
    compare: Sequence[str] = ()
    """Faster forms that are compared as well, of :data:`FORMS`."""
    recogniser: str | None = None
    similarity: str | None = None
    opinion: str | None = "none"
    """Judges, by name, and ``NAME:MODEL`` for another model; ``None``: the best that works here; ``none``: no judge."""


def read_size(text: str) -> int | None:
    """``all`` is ``None``.

    Raises:
        SettingsError: neither a positive number nor ``all``.
    """
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"a size of {text!r} cannot be; expected a number of prompts, or all")
    return int(text)


def read_forms(text: str) -> tuple[str, ...]:
    """Comma-separated :data:`FORMS`, each once.

    Raises:
        SettingsError: there is no such form.
    """
    forms = [form.strip() for form in text.split(",")]
    for form in forms:
        if form not in FORMS:
            raise SettingsError(f"there is no form {form!r}; expected {', '.join(FORMS)}")
    return tuple(dict.fromkeys(forms))
