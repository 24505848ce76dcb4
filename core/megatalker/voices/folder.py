"""Voices in a folder: ``NAME.safetensors``, made by ``Voice.save``, or ``NAME/`` with a recording to clone.

::

    voices/
      lexicon.toml          respellings of words, for all voices
      anna.lexicon.toml     the same for one voice, which may be a speaker of the checkpoint
      anna.safetensors
      bert/
        manifest.json     {"summary": "calm", "in_context": true}
        reference.wav     the recording
        transcript.txt    every word that is said in it; needed where in_context is true
"""

import errno
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from megatalker.errors import CapacityError, InvalidRequestError, explain_validation
from megatalker.settings.files import read_regular_file
from megatalker.voices.names import check_name, name_key, tidy_name
from megatalker.voices.reference_checks import read_good_reference
from megatalker.voices.voice import UnreadableVoiceError

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
LEXICON = "lexicon.toml"
"""Respellings of words: for all voices, or behind a voice's name and a full stop for that voice."""
MANIFEST, REFERENCE, TRANSCRIPT = "manifest.json", "reference.wav", "transcript.txt"
KEPT = "encoded-"
"""Prefix of the files that the library itself writes into a voice's folder."""

MOST_BYTES = {MANIFEST: 1 << 20, REFERENCE: 1 << 28, TRANSCRIPT: 1 << 20}
"""Larger files are not read."""
LEFTOVER_S = 60.0
"""Seconds after which a half-written or half-deleted folder was interrupted, since writing and deleting are quicker."""

_LEFTOVER = re.compile(r"\..+\.(new|gone)")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class VoiceExistsError(InvalidRequestError):
    """A voice is to be added whose name is taken."""


class StorageError(CapacityError):
    """Nothing can be written where voices are kept, or deleted there."""


class StorageFullError(StorageError):
    """There is no room left where voices are kept."""


class Manifest(BaseModel):
    """The content of ``manifest.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    summary: str = ""
    """A description for people."""
    in_context: bool = True
    """Whether the recording itself stands in the prompt, which clones more closely, or only how its speaker sounds."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded voice as its files had it at one moment."""

    manifest: Manifest
    reference: bytes
    """Content of an audio file."""
    transcript: str | None
    """``None`` unless in context."""

    @property
    def digest(self) -> bytes:
        """Digest of everything that decides how it sounds, the way it is encoded included: with trimmed edges."""
        text = "" if self.transcript is None else f"in context: {self.transcript}"
        return blake2b(text.encode() + b"\0" + self.reference, digest_size=16, person=b"trimmed").digest()


def read_recording(path: Path) -> Recording:
    """Return the files of ``path``, of which only the manifest has been checked.

    Raises:
        InvalidRequestError: one is missing, unreadable (then an :class:`UnreadableVoiceError`), or no manifest.
    """
    try:
        manifest = Manifest.model_validate_json(_content(path, MANIFEST))
        reference = _content(path, REFERENCE)
        transcript = _content(path, TRANSCRIPT).decode().strip() if manifest.in_context else None
    except ValidationError as error:
        faults = explain_validation(error.errors(include_url=False), known=Manifest.model_fields)
        raise InvalidRequestError(f"voice {path.name!r}: {MANIFEST}: {faults}") from error
    except (OSError, UnicodeDecodeError) as error:
        held = isinstance(error, FileNotFoundError | UnicodeDecodeError)
        raise (InvalidRequestError if held else UnreadableVoiceError)(
            f"voice {path.name!r} cannot be read: {error}; expected {MANIFEST}, {REFERENCE} and, in context, "
            f"{TRANSCRIPT} in UTF-8"
        ) from error
    return Recording(manifest, reference, transcript)


def add_recording(folder: Path, name: str, recording: Recording, max_seconds: float) -> None:
    """Check a recording and put it into the folder, whole or not at all.

    Raises:
        InvalidRequestError: the name is impossible or taken (:class:`VoiceExistsError`), or the recording makes no good
            voice.
        StorageError: the folder cannot be written to, or is full (:class:`StorageFullError`).
    """
    name = check_name(name)
    path = folder / name
    _refuse_existing(folder, name)
    read_good_reference(recording.reference, recording.transcript, max_seconds)
    remove_leftovers(folder)
    new: Path | None = None
    try:
        new = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".new", dir=folder))
        manifest = json.dumps(recording.manifest.model_dump(), indent=2) + "\n"
        (new / MANIFEST).write_text(manifest, encoding="utf-8", errors="backslashreplace")
        (new / REFERENCE).write_bytes(recording.reference)
        if recording.transcript is not None:
            (new / TRANSCRIPT).write_text(recording.transcript + "\n", encoding="utf-8", errors="replace")
        new.chmod(0o777 & ~_umask(folder))
        new.rename(path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):  # somebody else was quicker
            raise _taken(name) from error
        raise _storage_error(f"voice {name!r} cannot be kept", error) from error
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)  # gone where it has been renamed


def add_voice_file(folder: Path, name: str, content: bytes) -> Path:
    """Put the content of a voice file into the folder, whole or not at all, and return its path.

    Raises:
        InvalidRequestError: the name is impossible or taken (:class:`VoiceExistsError`).
        StorageError: as :func:`add_recording`.
    """
    name = check_name(name)
    _refuse_existing(folder, name)
    path, new = folder / f"{name}{SUFFIX}", folder / f".{name}{SUFFIX}.new"
    try:
        new.write_bytes(content)
        os.link(new, path)  # unlike renaming, refuses where somebody else was quicker
    except FileExistsError as error:
        raise _taken(name) from error
    except OSError as error:
        raise _storage_error(f"voice {name!r} cannot be kept", error) from error
    finally:
        new.unlink(missing_ok=True)
    return path


def remove_voice(folder: Path, name: str) -> None:
    """Delete all that is kept of a voice.

    Raises:
        InvalidRequestError: there is none.
        StorageError: the folder cannot be written to.
    """
    path = find_voice(folder, check_name(name))
    try:
        if path is None:
            raise FileNotFoundError
        if path.is_dir():
            gone = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".gone", dir=folder))
            shutil.rmtree(path.rename(gone), ignore_errors=True)  # what is left of it is a leftover
        else:
            path.unlink()
    except FileNotFoundError as error:
        raise InvalidRequestError(f"there is no voice {name!r} in {str(folder)!r}") from error
    except OSError as error:
        raise _storage_error(f"voice {name!r} cannot be removed", error) from error
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Delete what interrupted processes have left half written or half deleted. Never raises."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _LEFTOVER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                age_s = time.time() - path.stat().st_mtime
                if age_s > LEFTOVER_S:
                    shutil.rmtree(path, ignore_errors=True)


def find_voice(folder: Path, name: str) -> Path | None:
    """Find the file or folder of a voice, however its name is written; ``None`` if there is none.

    Raises:
        InvalidRequestError: there is no such folder, or a name in it is impossible.
    """
    found = {known: path for known, path in _named(folder) if name_key(known) == name_key(name)}
    return found.get(tidy_name(name)) or next(iter(found.values()), None)


def voices_in(folder: Path) -> dict[str, Path]:
    """The files and folders of the voices by name, sorted; see :func:`foreign_entries` for the rest.

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
    for path, why_not in _entries(folder):
        if why_not is None:
            yield check_name(path.stem if path.suffix == SUFFIX else path.name), path


def foreign_entries(folder: Path) -> dict[str, str]:
    """Names of what is no voice, such as ``lost+found``, and why not. Hidden entries are left out.

    Raises:
        InvalidRequestError: there is no such folder.
    """
    return {path.name: why_not for path, why_not in _entries(folder) if why_not is not None}


def _entries(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the folder's entries, sorted, each with the reason why it is no voice, if there is one."""
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidRequestError(
            f"the voices folder {str(folder)!r} does not exist; expected a folder of voices"
        ) from error
    except OSError as error:
        raise InvalidRequestError(f"the voices folder {str(folder)!r} cannot be read: {error.strerror}") from error
    for path in paths:
        if not path.name.startswith(".") and not path.name.endswith(LEXICON):
            yield path, _why_no_voice(path)


def _why_no_voice(path: Path) -> str | None:
    try:
        if path.is_file():
            return None if path.suffix == SUFFIX else "it is another kind of file"
        if not path.is_dir():
            return "it is neither a file nor a folder"
        own = (MANIFEST, REFERENCE, TRANSCRIPT)
        return None if any(inner.name in own for inner in path.iterdir()) else f"it is a folder without {MANIFEST}"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _content(path: Path, name: str) -> bytes:
    return read_regular_file(path / name, MOST_BYTES[name])


def _refuse_existing(folder: Path, name: str) -> None:
    if find_voice(folder, name) is not None or (folder / name).exists():
        raise _taken(name)


def _taken(name: str) -> VoiceExistsError:
    return VoiceExistsError(f"there is a voice {name!r} already; remove it, or choose another name")


def _storage_error(what: str, error: OSError) -> StorageError:
    """Return an error that everybody may read: it names no path, which stands in the log."""
    logger.error("%s: %s", what, error)
    if error.errno in _FULL:
        return StorageFullError(f"{what}: {error.strerror}; make room where voices are kept, and try again")
    return StorageError(f"{what}: {error.strerror}; let the server write to the folder of voices, and try again")


def _umask(folder: Path) -> int:
    """Return the permissions that others lack in a voice's folder: the same as in the folder of all voices."""
    return ~folder.stat().st_mode & 0o777
