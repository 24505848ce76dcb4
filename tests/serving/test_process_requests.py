"""Requests that go on in engine processes from what was said elsewhere, or whose text is rewritten first."""

import os
import signal

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Continuation, Engine
from process_stage import TEXT, Opener, made_by

pytestmark = pytest.mark.slow


def test_a_request_may_go_on_from_codes_of_elsewhere(open_processes: Opener, here: Engine) -> None:
    chunks = list(here.speak(TEXT, seed=9, return_codes=True))
    after = Continuation.after(chunks[:2])
    rest = list(open_processes().speak_for("", TEXT, seed=9, return_codes=True, after=after))
    whole = b"".join(chunk.pcm.tobytes() for chunk in chunks)
    assert b"".join(chunk.pcm.tobytes() for chunk in chunks[:2] + rest) == whole


@pytest.mark.parametrize("text", [TEXT, "Good morning.\n\nHow are you?\n\nGood night."], ids=["one", "three"])
def test_what_came_from_elsewhere_and_then_lost_its_engine_goes_on(
    open_processes: Opener, here: Engine, text: str
) -> None:
    chunks = list(here.speak(text, seed=9, return_codes=True))
    stream = open_processes(engines=2).speak_for(
        "", text, seed=9, return_codes=True, after=Continuation.after(chunks[:2])
    )
    first = next(stream)
    os.kill(made_by(stream).pid, signal.SIGKILL)
    whole = np.concatenate([chunk.codes for chunk in chunks]).tobytes()
    assert np.concatenate([chunk.codes for chunk in [*chunks[:2], first, *stream]]).tobytes() == whole


def test_text_is_rewritten_before_it_goes_to_a_process(open_processes: Opener, tiny_custom_voice: Checkpoint) -> None:
    wishes = {"seed": 3, "max_frames": 8, "language": "english"}
    engine = open_processes()
    rewritten = engine.speak("Sean has 2.", normalize="on", lexicon={"Sean": "Shawn"}, **wishes).read_all()
    fed = engine.speak(None, normalize="on", lexicon={"Sean": "Shawn"}, layout="interleaved", **wishes)
    for character in "Sean has 2.":
        fed.feed(character)
    fed.finish()
    assert np.array_equal(rewritten, engine.speak("Shawn has two.", **wishes).read_all())
    assert np.array_equal(fed.read_all(), engine.speak("Shawn has two.", layout="interleaved", **wishes).read_all())
