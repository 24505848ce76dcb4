"""Requests that go on in engine processes from what was said elsewhere, or whose text is rewritten first."""

import os
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Continuation, Engine
from megatalker.serving.processes.client import EngineClient
from megatalker.serving.processes.handle import EngineHandle
from megatalker.serving.processes.messages import FeedText, Order
from process_stage import TEXT, Opener, made_by
from waiting import eventually

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
    rewriting = {"normalize": "on", "lexicon": {"Sean": "Shawn"}}
    rewritten = engine.speak("Sean has 2.", **rewriting, **wishes).read_all()
    assert np.array_equal(rewritten, engine.speak("Shawn has two.", **wishes).read_all())

    def fed(pieces: Sequence[str], **options: Any) -> bytes:
        """Finish after the first chunk: a text that is whole before it begins is rounded in other places."""
        stream = engine.speak(None, layout="interleaved", **options, **wishes)
        for piece in pieces:
            stream.feed(piece)
        first = next(stream)
        stream.finish()
        return b"".join(chunk.pcm.tobytes() for chunk in [first, *stream])

    assert fed("Sean has 2.", **rewriting) == fed(["Shawn has two."])


def test_text_in_many_pieces_is_told_in_few(
    open_processes: Opener, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's thread is everybody's: each message that it is told costs the others time."""
    sent = list[Order]()
    send = EngineHandle.send

    def noted(handle: EngineHandle, orders: Sequence[Order]) -> None:
        sent.extend(orders)
        send(handle, orders)

    monkeypatch.setattr(EngineHandle, "send", noted)
    text = " ".join([TEXT] * 20)
    streams = [engine.speak(None, seed=4, max_frames=40) for engine in (here, open_processes())]
    heard = list[np.ndarray]()
    for stream in streams:
        stream.feed(text[:6])
        heard.append(next(stream).pcm)  # how many rows of text begin together decides how they are rounded
        for character in text[6:]:
            stream.feed(character)
    eventually(lambda: "".join(one.text for one in sent if isinstance(one, FeedText)) == text, "all is told by itself")
    told = [one for one in sent if isinstance(one, FeedText)]
    assert len(told) < len(text) / 4
    for stream in streams:
        stream.finish()
    ours, theirs = (np.concatenate([first, stream.read_all()]) for first, stream in zip(heard, streams, strict=True))
    assert np.array_equal(theirs, ours)


def test_a_piece_that_comes_alone_is_told_at_once(open_processes: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open_processes().speak(None, seed=4, max_frames=4)
    monkeypatch.setattr(EngineClient, "note_text", lambda *_: None)  # nobody looks
    sent = list[Order]()
    monkeypatch.setattr(EngineHandle, "send", lambda _, orders: sent.extend(orders))
    for piece in ("One ", "two. "):
        stream.feed(piece)
        last = sent[-1]
        assert isinstance(last, FeedText)
        assert last.text == piece
