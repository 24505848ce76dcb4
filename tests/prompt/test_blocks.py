"""Rows of fed text on a processor whose matrix library computes the rows of a block by two kernels."""

import os
import subprocess
import sys
from pathlib import Path

from waiting import PROCESS_S

TEST = f"{Path(__file__).with_name('test_prompt.py')}::test_rows_do_not_depend_on_how_the_text_is_split"


def test_rows_do_not_depend_on_the_split_there_either() -> None:
    """MKL has two with AVX2; it reads its choice at the start of a process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST]
    avx2 = {**os.environ, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    found = subprocess.run(command, env=avx2, capture_output=True, text=True, timeout=PROCESS_S)
    assert found.returncode == 0, found.stdout
