"""Runs the ``megatalker`` command as a process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import PROCESS_S

COMMAND = [sys.executable, "-c", "from megatalker.cli.main import run; run()"]


def megatalker(
    *arguments: str, cwd: Path, stdin: str | bytes = b"", raw: bool = False, **environment: str
) -> subprocess.CompletedProcess[Any]:
    """Run to the end. Standard output is text, or bytes if ``raw``."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=PROCESS_S,
        check=False,
    )
    stdout = done.stdout if raw else done.stdout.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, stdout, done.stderr.decode())


def error_of(text: str) -> str:
    """The error at the end of what a command said, in one line; what it said about its progress depends on time."""
    return one_line(text[text.index("error: ") :])


def one_line(text: str) -> str:
    """Messages as they were before a terminal wrapped them."""
    return " ".join(text.split())
