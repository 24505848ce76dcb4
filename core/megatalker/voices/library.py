"""The voices that a process keeps for its requests: those of a folder, cloned when they are first asked for."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from stat import S_ISDIR

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from megatalker.checkpoint import Checkpoint
from megatalker.errors import InvalidRequestError, MegatalkerError
from megatalker.settings.files import read_until_stable
from megatalker.voices.cache import VoiceCache
from megatalker.voices.cloner import VoiceCloner
from megatalker.voices.folder import (
    KEPT,
    SUFFIX,
    Recording,
    add_recording,
    foreign_entries,
    read_recording,
    remove_leftovers,
    remove_voice,
    voices_in,
)
from megatalker.voices.mixing import find_mixed, mix_parts
from megatalker.voices.names import name_key
from megatalker.voices.reference_checks import read_good_reference
from megatalker.voices.voice import UnreadableVoiceError, Voice, VoiceKind

logger = logging.getLogger(__name__)

NICENESS = 10
"""Niceness of the thread that encodes recordings, so that it gives way to everything else."""
SETTLE_S = 0.1
"""A folder that looks the same after this long is taken for written."""
MOST_LOOKS = 50

Clone = Callable[[NDArray[np.float32], str | None], Voice]


@dataclass(frozen=True, slots=True)
class VoiceEntry:
    """Facts about a voice that are known before it is first used."""

    kind: VoiceKind
    summary: str = ""
    voice: Voice | None = field(default=None, repr=False)
    """The voice of a voice file."""
    path: Path = Path()
    digest: bytes = b""
    """Digest of a recording."""


class VoiceLibrary:
    """Voices by name. Thread-safe: a request gets a voice as the folder had it at one moment, never parts of two.

    Args:
        folder: see :mod:`megatalker.voices.folder`; ``None``: no voices.
        checkpoint: whose encoders clone recordings, and whose speakers' names are taken.
        cache: of the voices that were made.
        max_seconds: of a recording.
        clone: instead of the checkpoint's own encoders.

    Raises:
        InvalidRequestError: something is wrong with a voice, or with all of them.
    """

    def __init__(
        self,
        folder: Path | None,
        checkpoint: Checkpoint,
        cache: VoiceCache[Voice],
        max_seconds: float,
        clone: Clone | None = None,
    ) -> None:
        self.folder = folder
        self._checkpoint, self._cache, self._max_seconds = checkpoint, cache, max_seconds
        self._adding, self._refreshing = threading.Lock(), threading.Lock()
        self.encoding = ThreadPoolExecutor(1, thread_name_prefix="megatalker-cloning", initializer=_yield_to_others)
        """The one thread that encodes recordings; it gives way to speech that runs."""
        self._clone = clone
        self._entries: Mapping[str, VoiceEntry] = {}
        self._faults: Mapping[str, MegatalkerError] = {}
        self._names: Mapping[str, str] = {}
        """Names as they are listed, by what all ways to write them have in common."""
        self._foreign: Mapping[str, str] = {}
        self._seen: object = None
        if folder is not None:
            remove_leftovers(folder)
        self.refresh()
        for fault in self._faults.values():
            if not isinstance(fault, UnreadableVoiceError):
                raise fault

    def refresh(self) -> None:
        """Read the folder again. A faulty voice is reported in the log, and requests for it get an error.

        Raises:
            InvalidRequestError: it cannot be looked at; the voices stay as they were.
        """
        if self.folder is None:
            return
        with self._refreshing:  # an earlier look must not replace a later one
            seen = _signature(self.folder)
            entries: dict[str, VoiceEntry] = {}
            faults: dict[str, MegatalkerError] = {}
            for name, path in voices_in(self.folder).items():
                try:
                    entries[name] = self._entry(name, path)
                except MegatalkerError as error:
                    faults[name] = error
                    logger.error("voice %r cannot be used: %s", name, error)
            names = {name_key(name): name for name in (*entries, *faults)}
            self._entries, self._faults, self._names, self._seen = entries, faults, names, seen
            self._tell_foreign(foreign_entries(self.folder))

    def refresh_if_changed(self) -> None:
        """Call :meth:`refresh` where the folder has changed and the change is complete."""
        if self.folder is None or _signature(self.folder) == self._seen:
            return
        read_until_stable(partial(_signature, self.folder), SETTLE_S, MOST_LOOKS)
        self.refresh()

    def look_again(self) -> None:
        """Call :meth:`refresh_if_changed` for a request that should find what another process has just added. Where the
        folder cannot be looked at, the voices stay as they were; whoever watches it says so.
        """
        with suppress(MegatalkerError):
            self.refresh_if_changed()

    def lacks(self, name: str) -> bool:
        """Whether this may be a voice that another process has just added."""
        return self.folder is not None and any(
            one not in self and not self._is_speaker(one) for one in self._names_in(name)
        )

    def _names_in(self, name: str) -> list[str]:
        """The voice of this name alone, or the parts of a mix."""
        parts = None if name in self or self._is_speaker(name) else mix_parts(name)
        return [name] if parts is None else [part for part, _ in parts]

    def _tell_foreign(self, foreign: Mapping[str, str]) -> None:
        for name, why in foreign.items():
            if self._foreign.get(name) != why:
                logger.warning("%r in the folder of voices is no voice and is skipped: %s", name, why)
        self._foreign = foreign

    def get(self, name: str) -> Voice | None:
        """The voice of this name, or the mix that it lists, cloned now if nobody asked for it before; ``None`` if there
        is none.

        Raises:
            InvalidRequestError: there is one, and something is wrong with it.
        """
        return self._kept(name) if name in self else find_mixed(name, self._checkpoint, self._kept)

    def _kept(self, name: str) -> Voice | None:
        name = self.listed_name(name)
        fault = self._faults.get(name)
        if fault is not None:
            raise InvalidRequestError(str(fault)) from fault
        entry = self._entries.get(name)
        if entry is None or entry.voice is not None:
            return None if entry is None else entry.voice
        return self._cache.get(entry.digest, lambda: self._made(entry))

    def at_hand(self, name: str) -> bool:
        """Whether :meth:`get` need not make anything, and so returns or raises at once."""
        entries = [self._entries.get(self.listed_name(one)) for one in self._names_in(name)]
        return all(entry is None or entry.voice is not None or entry.digest in self._cache for entry in entries)

    def add(self, name: str, recording: Recording) -> None:
        """Keep a recording as a voice, and clone it, so that what is wrong with it is known now.

        Raises:
            InvalidRequestError: nothing can be kept here, there is such a voice, or the recording makes no good one.
        """
        folder = self._writable()
        self.refuse_speaker(name)
        self.require_base()
        with self._adding:  # two ways to write one name must not both be free
            add_recording(folder, name, recording, self._max_seconds)
        try:
            self.refresh()
            self.get(name)
        except BaseException:
            remove_voice(folder, name)
            self.refresh()
            raise

    def remove(self, name: str) -> None:
        """Forget a voice. Raises ``InvalidRequestError`` where there is none."""
        remove_voice(self._writable(), name)
        self.refresh()

    def clone(self, samples: NDArray[np.float32], transcript: str | None) -> Voice:
        """Encode a recording, on the thread of :attr:`encoding`; raises as :meth:`VoiceCloner.clone`."""
        if self._clone is None:
            cloner = VoiceCloner(self._checkpoint)
            self._clone = lambda audio, text: cloner.clone(audio, reference_text=text)
        return self._clone(samples, transcript)

    def close(self) -> None:
        """Encode nothing that still waits, and nothing more."""
        self.encoding.shutdown(wait=False, cancel_futures=True)

    def require_base(self) -> None:
        """Raise ``InvalidRequestError`` where recordings cannot be cloned."""
        if self._clone is None:
            VoiceCloner(self._checkpoint)  # which says why not

    def items(self) -> Iterator[tuple[str, VoiceEntry]]:
        """All voices that can be asked for, by name."""
        return iter(self._entries.items())

    def listed_name(self, name: str) -> str:
        """The name of this voice as it is listed: case and Unicode's forms do not tell voices apart."""
        return self._names.get(name_key(name), name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name_key(name) in self._names

    def _writable(self) -> Path:
        if self.folder is None:
            raise InvalidRequestError("this server keeps no voices; its setting voices_dir names a folder for them")
        return self.folder

    def _entry(self, name: str, path: Path) -> VoiceEntry:
        self.refuse_speaker(name)
        if path.suffix == SUFFIX and path.is_file():
            voice = Voice.load(path)
            return VoiceEntry(voice.kind, voice=voice)
        self.require_base()
        recording = read_recording(path)
        digest = recording.digest
        known = self._entries.get(name)
        if known is None or known.digest != digest:
            self._checked(name, recording)
        return VoiceEntry("clone", recording.manifest.summary, path=path, digest=digest)

    def _checked(self, name: str, recording: Recording) -> NDArray[np.float32]:
        try:
            return read_good_reference(recording.reference, recording.transcript, self._max_seconds)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"voice {name!r}: {error}") from error

    def _made(self, entry: VoiceEntry) -> Voice:
        """The voice of a recording, from the file that keeps it or by cloning; the files may have changed meanwhile."""
        recording = read_recording(entry.path)
        if recording.digest != entry.digest:
            raise InvalidRequestError(f"voice {entry.path.name!r} is being changed; ask again in a moment")
        kept = entry.path / f"{KEPT}{entry.digest.hex()}-{self._checkpoint.fingerprint[:16]}{SUFFIX}"
        with suppress(InvalidRequestError):  # there is none, or half of one: it is made again
            return Voice.load(kept)
        samples = self._checked(entry.path.name, recording)
        voice = self.encoding.submit(self.clone, samples, recording.transcript).result()
        _keep(voice, kept)
        return voice

    def _is_speaker(self, name: str) -> bool:
        return name_key(name) in map(name_key, self._checkpoint.config.speakers)

    def refuse_speaker(self, name: str) -> None:
        """Raise ``InvalidRequestError`` where a voice of this name could not be told from a speaker."""
        if self._is_speaker(name):
            raise InvalidRequestError(f"voice {name!r} is named like a speaker of the checkpoint; rename it")


def _yield_to_others() -> None:
    """Lower the priority of this thread, which on Linux a thread has of its own.

    ``demo-base`` on a busy machine with two cores spoke at 0.7 of real time while this thread encoded without a break,
    and at 1.2 while one of the usual priority did (medians of three runs).
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS))


def _signature(folder: Path) -> object:
    """Return a value that changes when files of voices do, without reading them. Never raises."""
    if not folder.is_dir():
        return None
    found: list[tuple[str, int, int, int]] = []
    for path in _visible(folder):
        for one in (path, *_visible(path)):
            with suppress(OSError):
                facts = one.stat()
                written = (0, 0) if S_ISDIR(facts.st_mode) else (facts.st_size, facts.st_mtime_ns)
                found.append((str(one), facts.st_ino, *written))
    return found


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith((".", KEPT)))
    except OSError:
        return []


def _keep(voice: Voice, path: Path) -> None:
    """Store a voice until it is removed, so that its recording is encoded once, not once in each process."""
    new = path.with_name(f".{path.name}.new")
    try:
        voice.save(new)
        new.rename(path)
    except (OSError, SafetensorError) as error:
        logger.warning("%s cannot be kept, and is encoded again after a restart: %s", path, error)
        return
    for old in path.parent.glob(f"{KEPT}*"):
        if old != path:
            old.unlink(missing_ok=True)
