"""Runs the ``megatalker`` command and other programs as processes that need not import torch again."""

import multiprocessing
import os
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from waiting import PROCESS_S

COMMAND = [sys.executable, "-c", "from megatalker.cli.main import run; run()"]
"""An interpreter of its own, for tests of how a process begins and ends, and of what happens to it meanwhile."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["torch", "megatalker.engine", "megatalker_backends.plugin"])


def megatalker(
    *arguments: str, cwd: Path, stdin: str | bytes = b"", raw: bool = False, **environment: str
) -> subprocess.CompletedProcess[Any]:
    """Run to the end in a fork of a process that has imported torch. Standard output is text, or bytes if ``raw``."""
    return run_program(COMMAND[-1], "megatalker", *arguments, cwd=cwd, stdin=stdin, raw=raw, **environment)


def run_program(
    program: str,
    *arguments: str,
    cwd: Path,
    stdin: str | bytes = b"",
    raw: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[Any]:
    """Run the source of a program in such a fork; ``arguments`` are its ``sys.argv``."""
    (in_, to_process), (from_process, out), (errors, err) = (_forks.Pipe(duplex=False) for _ in range(3))
    process = _forks.Process(target=_run, args=(program, arguments, cwd, os.environ | environment, in_, out, err))
    process.start()
    for theirs in (in_, out, err):
        theirs.close()
    given = stdin.encode() if isinstance(stdin, str) else stdin
    said: dict[Connection, bytes] = {}
    threads = [threading.Thread(target=_write, args=(to_process, given))]
    threads += [threading.Thread(target=_read, args=(pipe, said)) for pipe in (from_process, errors)]
    for thread in threads:
        thread.start()
    process.join(PROCESS_S)
    process.kill()
    for thread in threads:
        thread.join()
    assert process.exitcode is not None
    stdout = said[from_process] if raw else said[from_process].decode()
    return subprocess.CompletedProcess(arguments, process.exitcode, stdout, said[errors].decode())


def run_test_with_avx2(test: str) -> subprocess.CompletedProcess[str]:
    """Run a test in a new process whose MKL uses AVX2: it reads its choice of kernels once, at the start."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test]
    avx2 = {**os.environ, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    return subprocess.run(command, env=avx2, capture_output=True, text=True, timeout=PROCESS_S)


def _run(
    program: str, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], *streams: Connection
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing had put nothing in its place
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = arguments or [""]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(program, vars(main))


def _write(pipe: Connection, data: bytes) -> None:
    with suppress(BrokenPipeError), pipe, open(pipe.fileno(), "wb", closefd=False, buffering=0) as file:
        while data:  # a command that fails early reads nothing
            data = data[file.write(data) :]


def _read(pipe: Connection, said: dict[Connection, bytes]) -> None:
    with pipe, open(pipe.fileno(), "rb", closefd=False) as file:
        said[pipe] = file.read()


def error_of(text: str) -> str:
    """The error at the end of what a command said, in one line; what it said about its progress depends on time."""
    return one_line(text[text.index("error: ") :])


def one_line(text: str) -> str:
    """Messages as they were before a terminal wrapped them."""
    return " ".join(text.split())
