"""Messages of the supervisor to a front end: all that it begins with, and how it is to end."""

from dataclasses import dataclass
from pathlib import Path

from megatalker.settings import Settings

DRAIN, STOP, RETIRE = b"drain\n", b"stop\n", b"retire\n"
"""Orders to front ends: finish what is spoken and begin nothing new; end it; serve your connections out."""


@dataclass(frozen=True)
class FrontEndStart:
    """All that a front end is told at its start."""

    number: int
    settings: Settings
    checkpoint: tuple[Path, str]
    """Its folder and name."""
    socket: int
    """The open file on which it takes connections."""
    wyoming: int | None
    """The open file on which it takes connections of Wyoming's clients."""
    supervisor: str
    """The address of the engines' supervisor."""
    folder: str
    """Folder of the sockets of the engines' supervisor, where this client's socket comes, too."""
    settings_file: Path | None
    usage: Path
    """SQLite file in which all front ends count what keys use."""
    places: Path
    """The file in which each front end says how many connections it has."""
    front_ends: int
    others_serve: bool
    """There are front ends that serve: this one takes no connection before it is warm."""
    log_levels: dict[str, int]
