"""espeak-ng as an external program: its shared library, called in this process."""

import ctypes
import ctypes.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatalker_demo_voice.speakers import SPEAKERS, EspeakSpeaker

RATE = 22_050
"""Samples a second that espeak-ng makes."""
_LIBRARY = "libespeak-ng.so.1"
_STAND_INS = ("libpcaudio.so.0", "libsonic.so.0")
_DATA_FILES = ("en_dict", "intonations", "phondata", "phonindex", "phontab")
_LANGUAGES, _VARIANTS = "lang/gmw", "voices/!v"
MOST_SPEAKERS = 300
"""espeak-ng lists at most 349 voices and variants, and does not find the others."""
_SYNCHRONOUS, _PHONEME_EVENTS = 2, 1
_EVENT_END, _EVENT_WORD, _EVENT_PHONEME = 0, 1, 7
_PARAMETER_RATE, _PARAMETER_PITCH = 1, 3
_UTF8 = 1


class EspeakError(RuntimeError):
    """espeak-ng is missing or refuses to work; the message says what to do."""


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True, slots=True)
class EspeakSpeech:
    """Speech of espeak-ng."""

    samples: NDArray[np.int16]
    """``[n]`` at :data:`RATE`."""
    phonemes: tuple[tuple[int, str], ...]
    """Each phoneme's first sample and its symbol."""
    words: tuple[tuple[int, int], ...]
    """Each word's first sample and where it begins in the text. A number is said as several words."""


@dataclass(frozen=True, slots=True)
class EspeakFiles:
    """Where espeak-ng is: its library, and a folder with ``espeak-ng-data`` that knows our variants."""

    library: str
    home: Path

    @classmethod
    def prepare(
        cls, installed: Path | None, scratch: Path, speakers: Sequence[EspeakSpeaker] = SPEAKERS
    ) -> "EspeakFiles":
        """Find espeak-ng and copy its English data to ``scratch``, with the variants of ``speakers`` added.

        Args:
            installed: a folder made by ``portable_espeak.sh``, or ``None`` for the installed one.
            scratch: an empty or missing folder.
            speakers: whose variants to write.

        Raises:
            EspeakError: espeak-ng or its data cannot be found, or these are more speakers than it can list.
        """
        if len(speakers) > MOST_SPEAKERS:
            raise EspeakError(f"{len(speakers)} speakers are too many, expected at most {MOST_SPEAKERS}")
        library, data = _portable(installed) if installed else _system()
        target = scratch / "espeak-ng-data"
        target.mkdir(parents=True, exist_ok=True)
        for name in _DATA_FILES:
            shutil.copyfile(data / name, target / name)
        shutil.copytree(data / _LANGUAGES, target / _LANGUAGES, dirs_exist_ok=True)
        (target / _VARIANTS).mkdir(parents=True, exist_ok=True)
        for speaker in speakers:
            variant = f"{_VARIANTS}/{speaker.voice.partition('+')[2]}"
            if speaker.variant is None:
                shutil.copyfile(data / variant, target / variant)
            else:
                (target / variant).write_text(speaker.variant, encoding="utf-8")
        return cls(library, scratch)


def _portable(folder: Path) -> tuple[str, Path]:
    library = folder.resolve() / _LIBRARY
    if not library.is_file():
        raise EspeakError(f"{str(folder)!r} holds no {_LIBRARY}; make the folder with demo_voice/portable_espeak.sh")
    return str(library), folder / "espeak-ng-data"


def _system() -> tuple[str, Path]:
    library = ctypes.util.find_library("espeak-ng")
    roots = [
        path for root in ("/usr/lib", "/usr/share", "/usr/local/share") for path in Path(root).glob("**/espeak-ng-data")
    ]
    data = next((path for path in roots if (path / "en_dict").is_file()), None)
    if library is None or data is None:
        raise EspeakError(
            "espeak-ng is not installed; install it (apt-get install espeak-ng), "
            "or make a folder with demo_voice/portable_espeak.sh and pass it as --espeak"
        )
    return library, data


class Espeak:
    """One synthesiser. A process can hold only one, and what it says depends a little on what it said before."""

    def __init__(self, where: EspeakFiles) -> None:
        folder = Path(where.library).parent
        for name in _STAND_INS:
            if folder.name and (folder / name).is_file():
                ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        self._library: Any = ctypes.CDLL(where.library)
        rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, str(where.home).encode(), _PHONEME_EVENTS)
        if rate != RATE:
            raise EspeakError(f"espeak-ng reports {rate} samples a second, expected {RATE}; its data may be damaged")
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)
        self._blocks: list[NDArray[np.int16]] = []
        self._phonemes: list[tuple[int, str]] = []
        self._words: list[tuple[int, int]] = []

    def say(
        self, text: str, speaker: EspeakSpeaker, *, rate: int | None = None, pitch: int | None = None
    ) -> EspeakSpeech:
        """Speak ``text``; ``rate`` and ``pitch`` replace the speaker's own.

        Raises:
            EspeakError: the voice is unknown or synthesis fails.
        """
        self._check(self._library.espeak_SetVoiceByName(speaker.voice.encode()), f"voice {speaker.voice!r}")
        self._library.espeak_SetParameter(_PARAMETER_RATE, rate or speaker.rate, 0)
        self._library.espeak_SetParameter(_PARAMETER_PITCH, speaker.pitch if pitch is None else pitch, 0)
        self._blocks, self._phonemes, self._words = [], [], []
        raw = text.encode()
        size = ctypes.c_size_t(len(raw) + 1)
        status = self._library.espeak_Synth(raw, size, 0, 1, 0, _UTF8, None, None)
        self._check(status, f"text {text!r}")
        samples = np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.int16)
        return EspeakSpeech(samples, tuple(self._phonemes), tuple(self._words))

    def _receive(self, block: Any, count: int, events: Any) -> int:
        if count > 0:
            self._blocks.append(np.ctypeslib.as_array(block, (count,)).copy())
        index = 0
        while events[index].type != _EVENT_END:
            event = events[index]
            if event.type == _EVENT_PHONEME:
                self._phonemes.append((event.sample, event.id.string.decode("utf-8", "replace")))
            if event.type == _EVENT_WORD:
                self._words.append((event.sample, event.text_position - 1))
            index += 1
        return 0

    def _check(self, status: int, what: str) -> None:
        if status != 0:
            raise EspeakError(f"espeak-ng refuses {what} (status {status})")
