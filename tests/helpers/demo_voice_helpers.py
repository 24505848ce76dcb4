"""Helpers that the tests of the demo voice's recipe share."""

import ctypes.util
from pathlib import Path

import pytest

from megatalker.testing.recipe import TINY
from megatalker_demo_voice.espeak import EspeakFiles

SMALL = TINY
"""Codebooks as in the real recipe, everything else as small as it goes."""
_PORTABLE = Path(__file__).parents[2] / ".espeak"


def espeak_files(scratch: Path) -> EspeakFiles:
    """Prepared data of the espeak-ng that is there; skips where there is none."""
    if not _PORTABLE.is_dir() and ctypes.util.find_library("espeak-ng") is None:
        pytest.skip("needs espeak-ng: apt-get install espeak-ng, or examples/demo_voice/portable_espeak.sh .espeak")
    return EspeakFiles.prepare(_PORTABLE if _PORTABLE.is_dir() else None, scratch)
