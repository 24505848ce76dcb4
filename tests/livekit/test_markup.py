"""Each element of markup in a text for LiveKit, at once and in pieces."""

import numpy as np
import pytest

from livekit_stage import collect, say
from markup_elements import ELEMENTS, FRAMES, elements
from megatalker import Checkpoint
from megatalker.serving.audio import from_pcm16
from megatalker_livekit import TTS
from session_stage import engine_on, fakes
from spoken_text import SpokenText

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("name", ELEMENTS)
async def test_each_element_is_spoken(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spoken, speaker = SpokenText(monkeypatch), list(tiny_custom_voice.config.speakers)[1]
    element = elements(speaker)[name]
    with engine_on(fakes(FRAMES), tiny_custom_voice, short_speech="believe") as engine:
        tts = TTS(engine=engine, markup=element.markup, cast={"Anna": speaker}, language="en")
        for begin in (lambda: tts.synthesize(element.text), lambda: say(tts, *element.text)):
            heard = from_pcm16(await collect(begin()))
            assert tuple(spoken.take()) == element.segments
            element.require_pause(heard[: element.samples])
            assert not np.any(heard[element.samples :])
