"""Who begins next, and what finding out costs those who play."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from engine_stage import TEXT, Opener
from fake_backend import CAPABILITIES, Behaviour, Fakes
from megatalker.engine import SpeechStream
from megatalker.engine.admission import Grant
from megatalker.engine.newcomers import NO_ROOM, Newcomers
from megatalker.engine.scheduling import Pace, Room
from megatalker.engine.utterance import Utterance
from megatalker.interfaces import Limit


@pytest.mark.parametrize("is_open", [True, False], ids=["no room", "not their turn"])
def test_while_nobody_may_begin_it_is_not_asked_who_would(
    open_engine: Opener, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """With hundreds that wait the answer takes longer than a launch."""
    asked, refused, with_rows, may_begin = list[int](), list[bool](), Newcomers._with_rows, Newcomers._room
    second: list[SpeechStream] = []

    def ask(newcomers: Newcomers, new: Sequence[Utterance], holding: Sequence[Utterance], now: float) -> list[Grant]:
        asked.append(len(new))
        return with_rows(newcomers, new, holding, now)

    def refuse(newcomers: Newcomers, holding: Sequence[Utterance], now: float, begun: int, rows_begun: int) -> Room:
        found = may_begin(newcomers, holding, now, begun, rows_begun)
        refused.append(found is NO_ROOM)
        return found

    def arrive(call: int) -> None:
        if call == 3:
            second.append(engine.speak(TEXT, seed=2))

    monkeypatch.setattr(Newcomers, "_with_rows", ask)
    monkeypatch.setattr(Newcomers, "_room", refuse)
    monkeypatch.setattr(Pace, "room", lambda *_: Room(0.0 if is_open and second and len(refused) < 4 else inf, inf))
    monkeypatch.setattr(Pace, "is_open", is_open)
    monkeypatch.setattr(Pace, "lend", lambda pace: None)
    monkeypatch.setattr(Pace, "note_others", lambda pace, seconds, streams, frames: None)
    capabilities = replace(CAPABILITIES, max_streams=Limit.NONE)
    engine = open_engine(Fakes(talkers={"fake": Behaviour(frames=40, capabilities=capabilities, on_decode=arrive)}))
    assert len(engine.speak(TEXT, seed=1).read_all())
    assert len(second[0].read_all())
    assert sum(refused) >= 3
    assert asked == [1] * refused.count(False)
