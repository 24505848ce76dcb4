"""A trial without models: sides that make sounds from texts and seeds, and judges that read them.

``python quality_stage.py FOLDER`` runs one, slowly enough to be killed.
"""

import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from megatalker import hookimpl
from megatalker.checkpoint import Checkpoint
from megatalker.cli.verify.quality_options import QualityOptions
from megatalker.plugins import BackendRegistry
from megatalker.plugins.judges import JudgeContext, SpeechJudge
from megatalker.settings import Settings
from megatalker_conformance.quality import program, trial
from megatalker_conformance.quality.result import QualityResult
from megatalker_conformance.quality.sides import Pcm, SpeakAll, Spoken, Task

SILENT_S = 0.05


def sound(text: str, seed: int, harm: float = 0.0) -> Pcm:
    """Half a second and more of noise; its last sample tells ``harm``."""
    chance = np.random.default_rng(int(hashlib.sha256(f"{text}{seed}".encode()).hexdigest()[:8], 16))
    pcm = 0.2 * chance.standard_normal(12_000 + 100 * len(text))
    pcm[: int(SILENT_S * 24_000)] = 0
    pcm[-1] = harm
    return pcm.clip(-0.9, 0.9).astype(np.float32)


def side(harm: float, pause_s: float = 0.0, gaps: int | None = None) -> Any:
    """Return a side that speaks with this much harm in every fourth prompt, and with gaps in every take."""

    @contextmanager
    def opened(*_: object) -> Iterator[SpeakAll]:
        def speak_all(tasks: Sequence[Task]) -> Iterator[Spoken]:
            for prompt, seed in tasks:
                time.sleep(pause_s)
                own = harm if int(prompt.name.rpartition("-")[2]) % 4 == 0 else 0.0
                yield Spoken(sound(prompt.text, seed, own), gaps)

        yield speak_all

    return opened


class StageJudges:
    """A recogniser that hears all words, or one less where harm was done; a voice that is lost as far as harm goes."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s

    @hookimpl
    def megatalker_judges(self) -> list[SpeechJudge]:
        known: dict[str, Any] = {"version": lambda _: "stage 1", "probe": lambda _: None}
        hear, embed = self._recogniser, lambda _: self._embed
        return [
            SpeechJudge(name="reader", kind="recogniser", summary="", load=hear, **known),
            SpeechJudge(name="voice", kind="similarity", summary="", load=embed, **known),
        ]

    def _recogniser(self, context: JudgeContext) -> Any:
        word = sorted(context.vocabulary)[0]

        def hear(pcm: Pcm) -> str:
            time.sleep(self._pause_s)
            return f"{word} {word} {word} {word}" if pcm[-1] > 0.4 else f"{word} {word} {word} {word} {word}"

        return hear

    def _embed(self, pcm: Pcm) -> Any:
        return np.array([1.0, float(abs(pcm[-1]) > 0.4), float(pcm[5000:5100].mean())])


def run_stage(
    folder: Path, harm: float, *, size: int = 24, pause_s: float = 0.0, progress: Any = lambda *_: None, **options: Any
) -> QualityResult:
    """Run a whole trial in ``folder``; every text is five times one word."""
    texts = folder.parent / "texts.txt"
    texts.write_text("\n".join(["stop stop stop stop stop."] * size))
    judges = {"recogniser": "reader", "similarity": "voice"}
    order = QualityOptions(**{"out": folder, "prompts": str(texts), **judges, **options})
    registry = BackendRegistry.installed()
    registry.register(StageJudges(pause_s), "stage")
    with (
        mock.patch.object(trial, "official_side", side(0.0, pause_s)),
        mock.patch.object(trial, "engine_side", side(harm, pause_s, gaps=1)),
        mock.patch.object(BackendRegistry, "installed", return_value=registry),
    ):
        return program.quality(Checkpoint.open("demo"), Settings.read(device="cpu"), order, progress)


if __name__ == "__main__":
    run_stage(Path(sys.argv[1]), float(sys.argv[2]), pause_s=0.02)
