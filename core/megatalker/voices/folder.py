"""Voices in a folder: ``NAME.safetensors``, made by ``Voice.save``, or ``NAME/`` with a recording to clone.

::

    voices/
      anna.safetensors
      bert/
        manifest.json     {"summary": "calm", "in_context": true}
        reference.wav     the recording
        transcript.txt    every word that is said in it; needed where in_context is true
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from megatalker.errors import InvalidRequestError, explain_validation
from megatalker.voices.names import check_name, name_key, tidy_name
from megatalker.voices.reference_checks import read_good_reference

SUFFIX = ".safetensors"
MANIFEST, REFERENCE, TRANSCRIPT = "manifest.json", "reference.wav", "transcript.txt"
KEPT = "encoded-"
"""How files begin that the library itself writes into a voice's folder."""


class Manifest(BaseModel):
    """What ``manifest.json`` says."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    summary: str = ""
    """For people."""
    in_context: bool = True
    """Whether the recording itself stands in the prompt, which clones more closely, or only how its speaker sounds."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded voice as its files had it at one moment."""

    manifest: Manifest
    reference: bytes
    """Of an audio file."""
    transcript: str | None
    """``None`` unless in context."""

    @property
    def digest(self) -> bytes:
        """Of everything that decides how it sounds, the way it is encoded included: with trimmed edges."""
        text = "" if self.transcript is None else f"in context: {self.transcript}"
        return blake2b(text.encode() + b"\0" + self.reference, digest_size=16, person=b"trimmed").digest()


def read_recording(path: Path) -> Recording:
    """The files of ``path``, unchecked but for the manifest.

    Raises:
        InvalidRequestError: one is missing, unreadable, or no manifest.
    """
    try:
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
        reference = (path / REFERENCE).read_bytes()
        transcript = (path / TRANSCRIPT).read_text(encoding="utf-8").strip() if manifest.in_context else None
    except ValidationError as error:
        faults = explain_validation(error.errors(include_url=False), known=Manifest.model_fields)
        raise InvalidRequestError(f"voice {path.name!r}: {MANIFEST}: {faults}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"voice {path.name!r} cannot be read: {error}; expected {MANIFEST}, {REFERENCE} and, in context, "
            f"{TRANSCRIPT} in UTF-8"
        ) from error
    return Recording(manifest, reference, transcript)


def add_recording(folder: Path, name: str, recording: Recording, max_seconds: float) -> None:
    """Check a recording and put it into the folder, whole or not at all.

    Raises:
        InvalidRequestError: there is such a voice, the name is impossible, or the recording makes no good voice.
    """
    name = check_name(name)
    path = folder / name
    _refuse_existing(folder, name)
    read_good_reference(recording.reference, recording.transcript, max_seconds)
    new = folder / f".{name}.new"
    new.mkdir()
    try:
        (new / MANIFEST).write_text(json.dumps(recording.manifest.model_dump(), indent=2) + "\n", encoding="utf-8")
        (new / REFERENCE).write_bytes(recording.reference)
        if recording.transcript is not None:
            (new / TRANSCRIPT).write_text(recording.transcript + "\n", encoding="utf-8")
        new.rename(path)
    except OSError as error:
        shutil.rmtree(new)
        _refuse_existing(folder, name)
        raise InvalidRequestError(f"voice {name!r} cannot be written: {error}") from error


def remove_voice(folder: Path, name: str) -> None:
    """Delete all that is kept of a voice. Raises ``InvalidRequestError`` where there is none."""
    path = find_voice(folder, check_name(name))
    if path is None:
        raise InvalidRequestError(f"there is no voice {name!r} in {str(folder)!r}")
    if path.is_dir():
        shutil.rmtree(path.rename(folder / f".{path.name}.gone"))
    else:
        path.unlink()


def find_voice(folder: Path, name: str) -> Path | None:
    """Find the file or folder of a voice, however its name is written; ``None`` if there is none.

    Raises:
        InvalidRequestError: there is no such folder, or a name in it is impossible.
    """
    found = {known: path for known, path in _named(folder) if name_key(known) == name_key(name)}
    return found.get(tidy_name(name)) or next(iter(found.values()), None)


def voices_in(folder: Path) -> dict[str, Path]:
    """The files and folders of the voices by name, sorted.

    Raises:
        InvalidRequestError: there is no such folder, a name is impossible, or is that of a file and of a folder.
    """
    found: dict[str, Path] = {}
    keys: dict[str, Path] = {}
    for name, path in _named(folder):
        other = keys.setdefault(name_key(name), path)
        if other is not path:
            raise InvalidRequestError(f"two voices are named {name!r}: {other.name} and {path.name}; rename one")
        found[name] = path
    return found


def _named(folder: Path) -> Iterator[tuple[str, Path]]:
    """Voices in the folder with their names, sorted; two may have the same."""
    if not folder.is_dir():
        raise InvalidRequestError(f"the voices folder {str(folder)!r} does not exist; expected a folder of voices")
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".") and (path.is_dir() or path.suffix == SUFFIX):
            yield check_name(path.name if path.is_dir() else path.stem), path


def _refuse_existing(folder: Path, name: str) -> None:
    if find_voice(folder, name) is not None:
        raise InvalidRequestError(f"there is a voice {name!r} already; remove it, or choose another name")
