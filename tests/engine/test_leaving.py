"""Python is left while a backend compiles: in order, soon, and never by a crash."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from megatalker.checkpoint import Checkpoint
from waiting import PROCESS_S

pytestmark = pytest.mark.slow

BEGINNING = """
import contextlib, logging, subprocess, sys, threading, time
logging.basicConfig(level=logging.WARNING)
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Engine, interpreter
from megatalker.errors import EngineClosedError

entered = threading.Event()
def compiles():
    while True:
        entered.set()
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
def computes():
    while True:
        entered.set()
        sum(range(1000))
def swallows():
    while True:
        entered.set()
        try:
            sum(range(1000))
        except Exception:
            pass
def hangs():
    entered.set()
    time.sleep(1000)
def is_told():  # prints nothing: a daemon thread that does so while Python ends is fatal by itself
    with contextlib.suppress(EngineClosedError):
        engine.warmup()

fakes = Fakes(talkers={"first": Behaviour(on_warmup=globals()[sys.argv[2]]), "second": Behaviour()})
engine = Engine.open(checkpoint=sys.argv[1], registry=fakes.registry)
"""
IN_A_THREAD = """
thread = threading.Thread(target=is_told)
thread.daemon = True
thread.start()
entered.wait()
"""


def start(checkpoint: Checkpoint, program: str, warmup: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", BEGINNING + textwrap.dedent(program), checkpoint.folder, warmup],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("warmup", "end", "status"),
    [
        ("compiles", "", 0),
        ("compiles", "engine.close()", 0),
        ("computes", "raise ValueError('mine')", 1),
        ("swallows", "sys.exit(7)", 7),
    ],
    ids=["end", "close", "raise", "exit"],
)
def test_leaving_python_interrupts_a_warm_up(tiny_custom_voice: Checkpoint, warmup: str, end: str, status: int) -> None:
    shorter = "import megatalker.engine.engine as module\nmodule.CLOSE_TIMEOUT_S = 0.2\n"
    with start(tiny_custom_voice, IN_A_THREAD + shorter + end, warmup) as process:
        _, complained = process.communicate(timeout=PROCESS_S)
    assert process.returncode == status, complained
    assert "Fatal" not in complained
    assert "faulty" not in complained
    if end != "raise ValueError('mine')":
        assert "Traceback" not in complained


def test_ctrl_c_during_a_warm_up_ends_the_program(tiny_custom_voice: Checkpoint) -> None:
    program = """
    import megatalker.engine.engine as module
    module.CLOSE_TIMEOUT_S = 0.2
    threading.Thread(target=lambda: (entered.wait(), print("entered", flush=True)), daemon=True).start()
    with engine:
        engine.warmup()
    """
    with start(tiny_custom_voice, program, "compiles") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "entered\n"
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=PROCESS_S)
    assert process.returncode == -signal.SIGINT, complained
    assert complained.rstrip().endswith("KeyboardInterrupt")
    assert "Fatal" not in complained


def test_what_cannot_be_interrupted_is_not_waited_for_for_ever(tiny_custom_voice: Checkpoint) -> None:
    program = IN_A_THREAD + "interpreter.LEAVE_TIMEOUT_S = 0.5\nsys.stdout.write('last words')\n"
    with start(tiny_custom_voice, program, "hangs") as process:
        said, complained = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 1
    assert said.endswith("last words")
    assert "cannot be interrupted" in complained
    assert "Fatal" not in complained


def test_leaving_without_a_warm_up_frees_the_backends(tiny_custom_voice: Checkpoint) -> None:
    program = """
    stream = engine.speak("Hello there.")
    next(stream)
    sys.stdout.write("bye")
    """
    with start(tiny_custom_voice, program, "hangs") as process:
        said, complained = process.communicate(timeout=PROCESS_S)
    assert (process.returncode, said, complained) == (0, "bye", "")
