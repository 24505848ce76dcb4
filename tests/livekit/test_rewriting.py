"""Words of a lexicon and numbers in a text for LiveKit: what is spoken."""

import pytest

from livekit_stage import collect, say
from megatalker import Checkpoint
from megatalker_livekit import TTS
from session_stage import engine_on, fakes
from spoken_text import SpokenText

pytestmark = pytest.mark.asyncio
WRITTEN = "Sean ran 5 km on May 3."


async def test_pieces_and_the_whole_are_rewritten_the_same(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = SpokenText(monkeypatch)
    with engine_on(fakes(40), tiny_custom_voice) as engine:
        speaker = TTS(engine=engine, normalize="on", lexicon={"Sean": "Shawn"}, language="en")
        for begin in (lambda: say(speaker, *WRITTEN), lambda: speaker.synthesize(WRITTEN)):
            assert await collect(begin())
            assert spoken.take() == ["Shawn ran five kilometers on May third."]
        speaker.update_options(normalize="off")
        assert await collect(say(speaker, *WRITTEN))
        assert spoken.take() == ["Shawn ran 5 km on May 3."]
