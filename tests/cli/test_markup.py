"""``megatalker say`` with markup."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from commands import megatalker, one_line
from megatalker.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("markup", "text", "samples"),
    [
        ("tags", "[pause:410ms]Go.", 9840),
        ("ssml", "<speak><break time='410ms'/>Go.</speak>", 9840),
        ("tags", "Go.[pause:1ms][voice:anna]Stop.", 24),
        ("ssml", "<prosody rate='25%' volume='soft'>Go.<break time='1ms'/></prosody>", 24),
    ],
)
@pytest.mark.parametrize("fed", [False, True])
def test_say_speaks_markup(
    tiny_custom_voice: Checkpoint, markup: str, text: str, samples: int, fed: bool, tmp_path: Path
) -> None:
    speaker = list(tiny_custom_voice.config.speakers)[1]
    order = ("--checkpoint", str(tiny_custom_voice.folder), "--seed", "3", "--markup", markup, "-o", "a.wav")
    cast = ("--cast", f"Anna={speaker}")
    done = megatalker("say", "-" if fed else text, *order, *cast, cwd=tmp_path, stdin=text if fed else "")
    assert done.returncode == 0, done.stderr
    heard, _ = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert len(heard) % 1920 == samples % 1920
    if text.startswith(("[pause", "<speak><break")):
        assert not heard[:samples].any()
        assert np.any(heard[samples:])


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("a <b>", "--markup", "ssml"), "line 1, column 3: unknown element <b>"),
        (("a", "--markup", "html"), "html"),
        (("a", "--cast", "Anna"), "--cast is 'Anna', expected NAME=VOICE, each name once"),
        (("a", "--cast", "Anna=nobody", "--markup", "tags"), "nobody"),
    ],
)
def test_what_is_wrong_is_said(
    tiny_custom_voice: Checkpoint, order: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = megatalker("say", *order, "--checkpoint", str(tiny_custom_voice.folder), "-o", "a.wav", cwd=tmp_path)
    assert done.returncode != 0
    assert message in one_line(done.stderr)
    assert "Traceback" not in done.stderr
