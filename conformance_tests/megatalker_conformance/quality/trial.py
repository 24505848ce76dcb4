"""Runs a trial: all sides speak, the judges listen, and what they found is compared. It goes on where it was broken
off, and says the same as if it had not been.
"""

import hashlib
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.official import why_no_official
from megatalker.cli.bench.report import environment_of, versions
from megatalker.cli.verify.quality_options import CONTROL, OURS, QualityOptions
from megatalker.errors import InvalidRequestError, UnsupportedError
from megatalker.plugins import BackendRegistry
from megatalker.plugins.device import dtype_name, resolve_device, resolve_dtype
from megatalker.plugins.judges import KINDS, JudgeContext, JudgeKind
from megatalker.settings import Settings
from megatalker.voices import read_reference
from megatalker_conformance.quality.normaliser import BenchmarkNormaliser
from megatalker_conformance.quality.panel import Seated, seat
from megatalker_conformance.quality.prompts import PromptSet
from megatalker_conformance.quality.sides import SpeakAll, engine_side, form_settings, official_side
from megatalker_conformance.quality.sound import measure_sound
from megatalker_conformance.quality.sources import find_prompts
from megatalker_conformance.quality.store import Take, TrialFolder
from megatalker_conformance.verify.subject import engine_settings

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and all of it."""
MOST_SEEDS = 100
SPACING = 1000
"""Seeds of a prompt begin at this many times its number, so that no two takes of a side share one."""
ANCHOR = 0
"""Seed of the official take that voices which are no recording are compared with; trials begin at 1."""


@dataclass
class QualityTrial:
    """One trial: its prompts, sides, folder and judges."""

    checkpoint: Checkpoint
    settings: Settings
    options: QualityOptions
    prompts: PromptSet
    folder: TrialFolder
    judges: dict[JudgeKind, Seated]
    normaliser: BenchmarkNormaliser
    environment: dict[str, str]

    @classmethod
    def open(cls, checkpoint: Checkpoint, settings: Settings, options: QualityOptions) -> "QualityTrial":
        """Find the prompts, choose backends and judges, and open the folder.

        Raises:
            UnsupportedError: the official package or what error rates need is not installed.
            InvalidRequestError: prompts or folder cannot be used.
            MegatalkerError: a backend or judge that was asked for cannot be had here.
        """
        missing = why_no_official()
        if missing is not None:
            raise UnsupportedError(f"the official package is the control of every trial, and {missing}")
        if not 1 <= options.seeds <= MOST_SEEDS:
            raise InvalidRequestError(f"{options.seeds} seeds cannot be; expected 1 to {MOST_SEEDS}")
        registry, device = BackendRegistry.installed(), resolve_device(settings.device)
        talker = registry.choose_talker(settings.backend, checkpoint, device, settings).name
        codec = registry.choose_codec(settings.codec, checkpoint, device, settings).name
        fixed = engine_settings(settings, talker, codec)
        prompts = find_prompts(options, checkpoint, settings.language)
        normaliser = BenchmarkNormaliser(prompts.language)
        dtype = dtype_name(resolve_dtype(settings.dtype, device))
        environment = {"backend": talker, **environment_of(checkpoint, device, dtype, codec)}
        environment["streams"] = str(settings.max_streams)
        kept = TrialFolder(options.out, _facts(environment, fixed, prompts, options))
        words = frozenset(word for prompt in prompts.prompts for word in normaliser(prompt.text))
        context = JudgeContext(prompts.language, device, words)
        asked = {"recogniser": options.recogniser, "similarity": options.similarity, "opinion": options.opinion}
        seated = {kind: seat(registry, kind, asked[kind], context) for kind in KINDS}
        judges = {kind: judge for kind, judge in seated.items() if judge is not None}
        if not {"recogniser", "similarity"} & judges.keys():
            raise InvalidRequestError("a trial needs a recogniser or a judge of similarity; both are none")
        return cls(checkpoint, fixed, options, prompts, kept, judges, normaliser, environment)

    def run(self, progress: Progress) -> None:
        """Speak and judge all that was not spoken or judged yet.

        The official package, which takes longest, speaks last: a form that cannot be had here is refused before.
        """
        for side in reversed(self.sides):
            self.speak(side, progress)
        for side in self.sides:
            self.judge(side, progress)

    @property
    def sides(self) -> list[str]:
        """Names of the sides; the first is the control."""
        return [CONTROL, OURS, *self.options.compare]

    def takes(self, side: str) -> list[Take]:
        """All takes of a side that are compared, prompt by prompt."""
        return [take for index in range(len(self.prompts.prompts)) for take in self.of_prompt(side, index)]

    def of_prompt(self, side: str, index: int) -> list[Take]:
        """The takes of one prompt."""
        own = self.options.own_seeds if side != CONTROL else None
        return [Take(side, index, seed) for seed in own or range(1, self.options.seeds + 1)]

    @cached_property
    def anchors(self) -> list[Take]:
        """Official takes that are the voice's reference; none where a recording is, or no judge compares voices."""
        if "similarity" not in self.judges:
            return []
        recorded = all(prompt.ref_audio is not None for prompt in self.prompts.prompts)
        cloned = recorded and self.checkpoint.config.variant == "base"
        return [] if cloned else [Take(CONTROL, index, ANCHOR) for index in range(len(self.prompts.prompts))]

    def speak(self, side: str, progress: Progress) -> None:
        """Speak what one side has not spoken yet."""
        takes = self.takes(side) + (self.anchors if side == CONTROL else [])
        left = [take for take in takes if not self.folder.has(take)]
        if not left:
            return
        done = len(takes) - len(left)
        progress(f"{side} speaks", done, len(takes))
        tasks = [(self.prompts.prompts[take.index], take.index * SPACING + take.seed) for take in left]
        with self._opened(side) as speak_all:
            progress(f"{side} speaks", done, len(takes))
            for take, spoken in zip(left, speak_all(tasks), strict=True):
                sound = measure_sound(spoken.pcm)
                leading_s = None if sound.silent else sound.leading_s
                facts = {"seconds": sound.seconds, "silent": sound.silent, "clipped": sound.clipped}
                self.folder.save(take, spoken.pcm, {**facts, "leading_s": leading_s, "gaps": spoken.gaps})
                done += 1
                progress(f"{side} speaks", done, len(takes))

    def _opened(self, side: str) -> AbstractContextManager[SpeakAll]:
        speaker, language = self.settings.voice, self._language
        if side == CONTROL:
            device = resolve_device(self.settings.device)
            known = speaker or next(iter(self.checkpoint.config.speakers), None)
            dtype = resolve_dtype(self.settings.dtype, device)
            return official_side(self.checkpoint, device, dtype, language, known)
        settings = self.settings if side == OURS else form_settings(self.settings, side)
        return engine_side(self.checkpoint, settings, language, speaker)

    @property
    def _language(self) -> str:
        known = self.checkpoint.config.languages
        return self.prompts.language if self.prompts.language in known else "auto"

    def judge(self, side: str, progress: Progress) -> None:
        """Judge what one side has spoken; the official side must have spoken before."""
        for kind in self.judges:
            self._judge(kind, side, progress)

    def _judge(self, kind: JudgeKind, side: str, progress: Progress) -> None:
        judge, takes = self.judges[kind], self.takes(side)
        left = [take for take in takes if self.folder.judgement(judge.name, judge.version, take) is None]
        references = VoiceReferences(self, judge) if kind == "similarity" else None
        for done, take in enumerate(left, start=len(takes) - len(left)):
            progress(f"{judge.name} listens to {side}", done, len(takes))
            pcm = self.folder.recording(take)
            answer: Any
            if kind == "recogniser":
                answer = judge.text(pcm) if len(pcm) else ""
            elif self.folder.record(take)["silent"]:
                answer = 0.0  # silence resembles nobody, and nobody likes it
            elif references is not None:
                answer = float(references[take.index] @ judge.embedding(pcm))
            else:
                answer = judge.score(pcm)
            self.folder.save_judgement(judge.name, judge.version, take, answer)
        progress(f"{judge.name} listens to {side}", len(takes), len(takes))

    def answer(self, kind: JudgeKind, take: Take) -> Any:
        """Return what the judge said of a take."""
        judge = self.judges[kind]
        return self.folder.judgement(judge.name, judge.version, take)

    def error_rate(self, take: Take) -> float:
        """Word or character errors of a take."""
        rate: float = self.normaliser.error_rate(self.prompts.prompts[take.index].text, self.answer("recogniser", take))
        return rate

    @cached_property
    def seconds(self) -> list[float]:
        """Median duration of all takes of each prompt, all of which were spoken."""
        return [
            statistics.median(
                self.folder.record(take)["seconds"] for side in self.sides for take in self.of_prompt(side, index)
            )
            for index in range(len(self.prompts.prompts))
        ]


class VoiceReferences:
    """Embeddings of the recordings that voices are compared with, by prompt; the newest is kept."""

    def __init__(self, trial: QualityTrial, judge: Seated) -> None:
        self._trial = trial
        self._judge = judge
        self._kept: dict[object, NDArray[np.float64]] = {}

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        anchors = self._trial.anchors
        recording = None if anchors else self._trial.prompts.prompts[index].ref_audio
        key = index if recording is None else recording
        if key not in self._kept:
            pcm = self._trial.folder.recording(anchors[index]) if recording is None else read_reference(recording)
            self._kept = {key: self._judge.embedding(pcm)}
        return self._kept[key]


def _facts(
    environment: dict[str, str], settings: Settings, prompts: PromptSet, options: QualityOptions
) -> dict[str, str]:
    """Return what recordings depend on."""
    chosen = hashlib.sha256("\n".join(prompt.name for prompt in prompts.prompts).encode()).hexdigest()
    return {
        **{name: environment[name] for name in ("checkpoint", "backend", "codec", "device", "dtype")},
        **{name: version for name, version in versions().items() if name != "python"},
        "settings": f"{dict(settings.backends)} {dict(settings.codecs)} {settings.voice}",
        "prompts": prompts.digest,
        "chosen prompts": f"{len(prompts.prompts)}, {chosen}",
        "language": prompts.language,
    }
