"""Odd text from a language model: every word of it is spoken."""

import pytest
from livekit.agents.tts import TTSError

from livekit_stage import collect, say
from megatalker import Checkpoint
from megatalker_livekit import TTS
from session_stage import engine_on, fakes
from spoken_text import SpokenText

pytestmark = pytest.mark.asyncio
FRAMES = 40
"""More than there are tokens: no text is left when a stream ends."""


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> SpokenText:
    return SpokenText(monkeypatch)


@pytest.mark.parametrize(
    ("pieces", "meant"),
    [
        (("I am happy \ud83d", "\ude00 to see you."), ["I am happy \U0001f600 to see you."]),
        (("I am \ud83d happy <|im", "_end|> now."), ["I am happy now."]),
        (("Good morning.\n", "\nHow are you?"), ["Good morning.", "How are you?"]),
        (("\U0001f177\U0001f158",), ["HI"]),
    ],
)
async def test_pieces_and_the_whole(
    tiny_custom_voice: Checkpoint, spoken: SpokenText, pieces: tuple[str, ...], meant: list[str]
) -> None:
    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        speaker, failures = TTS(engine=engine), list[TTSError]()
        speaker.on("error", failures.append)
        for begin in (lambda: say(speaker, *pieces), lambda: speaker.synthesize("".join(pieces))):
            assert len(await collect(begin())) >= len(meant) * FRAMES * 1920 * 2
            assert spoken.take() == meant
    assert failures == []


async def test_a_refused_piece_of_raw_text_costs_itself_alone(
    tiny_custom_voice: Checkpoint, spoken: SpokenText
) -> None:
    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        speaker, failures = TTS(engine=engine, clean_text=False), list[TTSError]()
        speaker.on("error", failures.append)
        await collect(say(speaker, "Hello ", "wor\0ld ", "there."))
    assert spoken.take() == ["Hello there."]
    assert len(failures) == 1


@pytest.mark.parametrize("text", ["\u3164", "\u200b\ufeff", "<|im_end|>", "\x1b[1m"])
async def test_a_text_without_a_sound_is_a_moment_of_silence(tiny_custom_voice: Checkpoint, text: str) -> None:
    with engine_on(fakes(FRAMES), tiny_custom_voice) as engine:
        speaker = TTS(engine=engine)
        for stream in (speaker.synthesize(text), say(speaker, text)):
            assert 960 <= len(await collect(stream)) <= 1_440
