"""Folder of a trial: recordings, records and judgements, each written whole or not at all, so that a run that was
killed goes on where it was.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from megatalker.checkpoint.config import SAMPLE_RATE
from megatalker.errors import InvalidRequestError

Pcm = NDArray[np.float32]


@dataclass(frozen=True, slots=True, order=True)
class Take:
    """One prompt, spoken once."""

    side: str
    index: int
    """Number of the prompt."""
    seed: int

    @property
    def stem(self) -> str:
        return f"{self.side}/{self.index:05d}-{self.seed}"


class TrialFolder:
    """The folder that holds a trial so far.

    Args:
        folder: made if it is not there.
        facts: what the recordings depend on.

    Raises:
        InvalidRequestError: the folder holds another trial, or cannot be written to.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str]) -> None:
        self.folder = folder
        known = _read_json(folder / "trial.json")
        if known is None and folder.is_dir() and any(folder.iterdir()):
            raise InvalidRequestError(f"the folder {str(folder)!r} is not empty and holds no trial; give another --out")
        for name in sorted({*facts, *known} if known is not None else ()):
            if known is not None and known.get(name) != facts.get(name):
                raise InvalidRequestError(
                    f"the folder {str(folder)!r} holds another trial, in which {name} is {known.get(name)!r} and not "
                    f"{facts.get(name)!r}; give another --out, or remove it"
                )
        if known is None:
            self.write("trial.json", json.dumps(dict(facts), indent=1) + "\n")

    def has(self, take: Take) -> bool:
        """Whether it was spoken: its record is written after its recording."""
        return (self.folder / "takes" / f"{take.stem}.json").is_file()

    def save(self, take: Take, pcm: Pcm, record: Mapping[str, Any]) -> None:
        """Keep a recording, ``[samples]`` float32 at 24 kHz, in 16 bits, and its record."""
        path = self.folder / "takes" / f"{take.stem}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".part")
        soundfile.write(scratch, pcm, SAMPLE_RATE, format="WAV", subtype="PCM_16")
        scratch.replace(path)
        self.write(f"takes/{take.stem}.json", json.dumps({**asdict(take), **record}) + "\n")

    def record(self, take: Take) -> dict[str, Any]:
        """Return what :meth:`save` was given."""
        found = _read_json(self.folder / "takes" / f"{take.stem}.json")
        assert found is not None
        return found

    def recording(self, take: Take) -> Pcm:
        """``[samples]`` float32 at 24 kHz, as it was kept."""
        pcm: Pcm = soundfile.read(self.folder / "takes" / f"{take.stem}.wav", dtype="float32")[0]
        return pcm

    def judgement(self, judge: str, version: str, take: Take) -> Any:
        """Return what this version of a judge answered, or ``None``."""
        found = _read_json(self.folder / "judged" / judge / f"{take.stem}.json")
        return found["answer"] if found is not None and found["version"] == version else None

    def save_judgement(self, judge: str, version: str, take: Take, answer: Any) -> None:
        """Keep an answer, which is not ``None`` and can be written as JSON."""
        content = {**asdict(take), "version": version, "answer": answer}
        self.write(f"judged/{judge}/{take.stem}.json", json.dumps(content, ensure_ascii=False) + "\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file of the folder whole; returns its path."""
        path = self.folder / name
        scratch = path.with_name(f"{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with scratch.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except OSError as error:
            raise InvalidRequestError(
                f"{str(path)!r} cannot be written: {error.strerror}; give another --out"
            ) from error
        return path


def _read_json(path: Path) -> dict[str, Any] | None:
    """The content, or ``None`` where there is no such file or a disk has lost a part of it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None
