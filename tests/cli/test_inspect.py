"""``megatalker inspect`` as a user meets it."""

from pathlib import Path

import pytest

from commands import megatalker
from megatalker.checkpoint import Checkpoint


@pytest.mark.slow
def test_inspect_shows_shapes_and_sizes(tiny_1b7: Checkpoint, tmp_path: Path) -> None:
    done = megatalker("inspect", str(tiny_1b7.folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("hidden_size", "code predictor", "codec decoder", "accepted by", *tiny_1b7.config.speakers):
        assert word in done.stdout
