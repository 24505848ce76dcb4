"""Server and client over the real backends: the codes an engine makes here are the codes a client gets."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Chunk
from megatalker.serving.client import RemoteEngine
from serving import TEXT, Served, serving
from waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["reference", "compiled"])
def served(request: pytest.FixtureRequest, demo: Checkpoint) -> Iterator[Served]:
    plain = {"compiled": {"compile": "off"}}
    settings = {"device": "cpu", "max_streams": 4, "max_frames": 400, "backends": plain}
    with serving(demo, backend=request.param, **settings) as served:
        yield served


def whole(chunks: list[Chunk]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([chunk.pcm for chunk in chunks]), np.concatenate([chunk.codes for chunk in chunks])


def test_speech_is_the_same_bit_for_bit(served: Served) -> None:
    wishes = {"seed": 7, "max_frames": 24, "return_codes": True}
    with RemoteEngine(served.url) as remote:
        far, near = (whole(list(engine.speak(TEXT, **wishes))) for engine in (remote, served.engine))
    np.testing.assert_array_equal(far[0], near[0])
    np.testing.assert_array_equal(far[1], near[1])


def test_16_clients_over_4_rows_hear_only_their_own_speech(served: Served) -> None:
    async def client(number: int) -> list[Chunk]:
        with RemoteEngine(served.url, answer_timeout_s=600) as remote:
            async with remote.speak(f"Number {number}.", seed=number, max_frames=4, return_codes=True) as speech:
                return [chunk async for chunk in speech]

    async def everyone() -> list[list[Chunk]]:
        return await asyncio.gather(*(client(number) for number in range(16)))

    for number, chunks in enumerate(asyncio.run(everyone())):
        near = whole(list(served.engine.speak(f"Number {number}.", seed=number, max_frames=4, return_codes=True)))
        far = whole(chunks)
        np.testing.assert_array_equal(far[1], near[1])
        np.testing.assert_array_equal(far[0], near[0])
    eventually(lambda: not served.server.service.running, "nothing is left")


def test_the_first_chunk_leaves_long_before_the_last_frame(served: Served) -> None:
    talk = served.talk()
    talk.say("open", text=TEXT, seed=1, max_frames=100)
    assert talk.hear_event()["type"] == "opened"
    assert talk.hear_packet().frames == 1
    assert served.engine.metrics().active == 1, "it still speaks"
    talk.say("cancel")
    assert talk.hear_all().last["finish_reason"] == "cancelled"
    eventually(lambda: not served.engine.metrics().active, "its row is free")


def test_a_conversation_of_turns_and_interruptions(served: Served) -> None:
    talk = served.talk()
    for turn in range(3):
        name = f"turn-{turn}"
        talk.say("open", id=name, seed=turn, max_frames=20, return_codes=True)
        for word in TEXT.split():
            talk.say("text", id=name, text=word + " ")
        talk.say("finish", id=name)
        if turn == 1:
            talk.say("cancel", id=name)
        heard = talk.hear_all(name)
        if turn == 1:
            assert heard.last["finish_reason"] == "cancelled"
        else:
            np.testing.assert_array_equal(heard.codes(name), fed(served, turn))


def fed(served: Served, seed: int) -> np.ndarray:
    with served.engine.speak(None, seed=seed, max_frames=20, return_codes=True) as stream:
        stream.feed(TEXT)
        stream.finish()
        return whole(list(stream))[1]
