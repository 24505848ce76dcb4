"""The environment of processes that others start."""

import threading
from pathlib import Path

import pytest

from megatalker.engine import openmp
from megatalker.serving.processes.child import Child
from waiting import HANG_S


@pytest.mark.parametrize("environment", [None, {"OWN": "1"}])
def test_a_process_lets_idle_threads_of_torch_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str] | None
) -> None:
    """Also where the program that started it did not."""
    for name in openmp.WAITS:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "environment_of_a_child.py").write_text(
        "import os, pathlib\n"
        f"path = pathlib.Path({str(tmp_path / 'found')!r})\n"
        "path.write_text(os.environ['GOMP_SPINCOUNT'] + os.environ.get('OWN', ''))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = threading.Event()
    child = Child("environment_of_a_child", None, "test", lambda _: ended.set(), environment=environment)
    assert ended.wait(HANG_S)
    child.end()
    assert (tmp_path / "found").read_text() == openmp.ROUNDS + ("1" if environment else "")
