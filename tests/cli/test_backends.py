"""``megatalker backends`` as a user meets it."""

from pathlib import Path

import pytest

from commands import megatalker, one_line
from megatalker.checkpoint import Checkpoint
from megatalker.cli.backends import availability
from megatalker.interfaces import Availability


@pytest.mark.slow
def test_backends_lists_what_can_run_and_why_not(tiny_custom_voice: Checkpoint, tmp_path: Path) -> None:
    done = megatalker("backends", "--checkpoint", str(tiny_custom_voice.folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("compiled", "reference", "streaming", "available", "rank"):
        assert word in done.stdout
    names = megatalker("backends", "--names", "--checkpoint", str(tiny_custom_voice.folder), cwd=tmp_path)
    assert names.stdout.split() == ["compiled", "reference"]


@pytest.mark.parametrize("columns", [80, 40])
def test_reasons_are_shown_whole(tiny_custom_voice: Checkpoint, tmp_path: Path, columns: int) -> None:
    from megatalker.plugins import BackendRegistry, probe
    from megatalker.plugins.device import resolve_device
    from megatalker.settings import Settings

    arguments = ("backends", "--device", "cpu", "--checkpoint", str(tiny_custom_voice.folder))
    done = megatalker(*arguments, cwd=tmp_path, COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout
    for spec in BackendRegistry.installed().talkers:
        answer = probe(spec, tiny_custom_voice, resolve_device("cpu"), Settings())
        assert one_line(spec.summary) in one_line(done.stdout)
        assert one_line(answer.reason or "available") in one_line(done.stdout)
    if columns == 80:
        assert max(map(len, done.stdout.splitlines())) <= columns


def test_brackets_of_a_reason_are_not_taken_for_colours() -> None:
    reason = "pip install 'megatalker[cuda]'"
    assert reason in availability(Availability(reason)).plain
