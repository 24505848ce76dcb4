"""Fast answers: help, version and errors in arguments import nothing heavy."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

import megatalker
from commands import megatalker as command
from megatalker.cli.main import app
from megatalker.engine import openmp
from waiting import HANG_S

HEAVY = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "soundfile", "pydantic_settings", "pluggy")
WATCH = f"""
import atexit, sys
atexit.register(lambda: print("IMPORTED", *(set({HEAVY}) & set(sys.modules)), file=sys.stderr))
"""
COMMANDS = ("say", "backends", "inspect", "bench", "serve")


def imported_by(code: str, *arguments: str) -> tuple["subprocess.CompletedProcess[str]", list[str]]:
    """The heavy modules that a program ends with."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH + code, *arguments], capture_output=True, text=True, timeout=HANG_S
    )
    return done, done.stderr.rpartition("IMPORTED")[2].split()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["--nonsense"], 2),
        (["nonsense"], 2),
        *[([name, "--help"], 0) for name in COMMANDS],
        *[([name, "--nonsense"], 2) for name in COMMANDS],
        (["say", "Hi", "--seed", "x"], 2),
        (["say"], 2),
    ],
)
def test_answers_without_anything_heavy(arguments: list[str], status: int) -> None:
    done, heavy = imported_by("from megatalker.cli.main import run; run()", *arguments)
    assert done.returncode == status, done.stderr
    assert heavy == []


@pytest.mark.skipif(sys.platform != "linux", reason="torch's OpenMP is GNU's there")
@pytest.mark.parametrize(
    ("environment", "count"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_idle_threads_of_torch_sleep_soon_unless_they_are_told_otherwise(
    environment: dict[str, str], count: str | None
) -> None:
    """OpenMP says it of itself, once torch is loaded behind the entry point."""
    code = "from megatalker.cli.main import run\ntry: run()\nfinally: import torch"
    inherited = {name: value for name, value in os.environ.items() if name not in openmp.WAITS}
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        env=inherited | {"OMP_DISPLAY_ENV": "verbose"} | environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    (found,) = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert (found == count) if count else (int(found) > 10**6)


@pytest.mark.slow
def test_speaking_needs_no_transformers(demo: "megatalker.Checkpoint", tmp_path: Path) -> None:
    """It takes longer to import than everything else together; the official modules alone need it."""
    code = "from megatalker.cli.main import run; run()"
    done, heavy = imported_by(code, "say", "Hi.", "-o", str(tmp_path / "x.wav"), "--no-play", "--backend", "compiled")
    assert done.returncode == 0, done.stderr
    assert "torch" in heavy
    assert "transformers" not in heavy


def test_version(tmp_path: Path) -> None:
    assert command("--version", cwd=tmp_path).stdout == f"megatalker {version('megatalker')}\n"


def test_the_package_itself_imports_nothing_heavy() -> None:
    done, heavy = imported_by("import megatalker; from megatalker import errors; dir(megatalker)")
    assert (done.returncode, heavy) == (0, [])


def test_the_face_is_what_the_stub_lists() -> None:
    """The stub is what type checkers and people read, and what names are imported by."""
    stub = Path(megatalker.__file__).with_suffix(".pyi").read_text()
    listed: dict[str, list[str]] = {}
    exec("__all__" + stub.partition("__all__")[2], listed)
    assert sorted(listed["__all__"]) == sorted(megatalker.__all__) == sorted(dir(megatalker))
    for name in megatalker.__all__:
        assert getattr(megatalker, name) is not None
    assert megatalker.Engine.__module__ == "megatalker.engine.engine"
    with pytest.raises(AttributeError, match="Nonsense"):
        megatalker.Nonsense  # noqa: B018


def undescribed(command: Any, path: tuple[str, ...] = ("megatalker",)) -> Iterator[str]:
    """Commands and options without a description."""
    if not (command.help or "").strip():
        yield " ".join(path)
    for option in command.params:
        if option.param_type_name == "option" and not option.help:
            yield " ".join((*path, *option.opts))
    for name, inner in getattr(command, "commands", {}).items():
        yield from undescribed(inner, (*path, name))


def test_every_command_and_option_is_described() -> None:
    assert list(undescribed(typer.main.get_command(app))) == []
