"""``megatalker verify --quality``: the whole trial, and its files."""

from megatalker.checkpoint import Checkpoint
from megatalker.cli.verify.quality_options import QualityOptions
from megatalker.settings import Settings
from megatalker_conformance.quality.page import page_lines
from megatalker_conformance.quality.result import QualityResult
from megatalker_conformance.quality.trial import Progress, QualityTrial
from megatalker_conformance.quality.verdict import judge_trial


def quality(checkpoint: Checkpoint, settings: Settings, options: QualityOptions, progress: Progress) -> QualityResult:
    """Run a trial, or what is left of it, and write ``quality.json`` and ``quality.html`` into its folder.

    Raises:
        MegatalkerError: see :meth:`QualityTrial.open`; or a side cannot speak.
    """
    trial = QualityTrial.open(checkpoint, settings, options)
    trial.run(progress)
    result = judge_trial(trial)
    trial.folder.write("quality.json", result.json())
    trial.folder.write("quality.html", "\n".join([*page_lines(trial, result), ""]))
    return result
