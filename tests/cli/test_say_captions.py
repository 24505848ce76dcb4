"""Captions of ``megatalker say``: estimates, or the times of an aligner that another distribution brings along."""

import re
from pathlib import Path

import pytest
import soundfile

from commands import run_program
from megatalker.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

RUN = "import sys; sys.path.insert(0, '.'); from megatalker.cli.main import run; run()"
PLUGIN = """
from megatalker.plugins.aligner import Aligner, AlignerPlugin


class Halves(Aligner):
    def align(self, segment):
        half = len(segment.samples) / 48_000
        return [(half * n / len(segment.words), half * (n + 1) / len(segment.words)) for n in range(len(segment.words))]


HALVES = AlignerPlugin("halves", "the words share the first half of the audio", Halves)
"""


@pytest.fixture
def distribution(tmp_path: Path) -> Path:
    """A folder with an installed plug-in."""
    (tmp_path / "halves.py").write_text(PLUGIN)
    metadata = tmp_path / "halves-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[megatalker.aligners]\nhalves = halves:HALVES\n")
    return tmp_path


@pytest.mark.parametrize(("aligner", "part"), [("halves", 0.5), ("estimate", 1.0)])
def test_captions_have_the_aligners_times(
    tiny_custom_voice: Checkpoint, distribution: Path, aligner: str, part: float
) -> None:
    order = ["say", "One two three four.", "--out", "x.wav", "--captions", "x.vtt", "--seed", "3"]
    order += ["--checkpoint", str(tiny_custom_voice.folder)]
    environment = {"MEGATALKER_ALIGNER": aligner, "MEGATALKER_SHORT_SPEECH": "believe"}
    done = run_program(RUN, "megatalker", *order, cwd=distribution, **environment)
    assert done.returncode == 0, done.stderr
    shown = (distribution / "x.vtt").read_text()
    assert ("NOTE The times are estimates." in shown) == (aligner == "estimate")
    (end,) = re.findall(r"--> 00:00:([\d.]+)\nOne two three four\.", shown)
    assert float(end) == pytest.approx(part * soundfile.info(distribution / "x.wav").duration, abs=0.1)


def test_an_aligner_that_is_not_installed_is_refused_with_those_that_are(
    tiny_custom_voice: Checkpoint, distribution: Path
) -> None:
    order = ["say", "One.", "--out", "x.wav", "--checkpoint", str(tiny_custom_voice.folder)]
    done = run_program(RUN, "megatalker", *order, cwd=distribution, MEGATALKER_ALIGNER="halve")
    assert done.returncode != 0
    assert "did you mean 'halves'?" in " ".join(done.stderr.split())
