"""``RemoteEngine`` with several servers: an utterance goes on at the next one, with the same samples."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect as connect_socket

from megatalker.checkpoint import Checkpoint
from megatalker.engine import Chunk
from megatalker.errors import CapacityError, ConnectionFailedError, InvalidRequestError, SettingsError
from megatalker.serving.client import RemoteEngine, RemoteStream
from megatalker.serving.protocol.packets import Packet
from serving import TEXT, Served, fakes_with, serving
from waiting import HANG_S

LONG = "Hello there, this is a sentence.\n\nHere is another one.\n\nAnd that is all."
FRAMES = 40


@pytest.fixture(scope="module")
def servers(tiny_custom_voice: Checkpoint) -> Iterator[list[Served]]:
    with ExitStack() as stack:  # each segment has a few frames
        yield [stack.enter_context(serving(tiny_custom_voice, fakes_with(frames=7))) for _ in range(2)]


@pytest.fixture
def remote(servers: list[Served]) -> Iterator[RemoteEngine]:
    with RemoteEngine([server.url for server in servers]) as engine:
        yield engine


def lose(stream: RemoteStream) -> None:
    """Cut the connection to the server that speaks."""
    connection = stream._session.connection

    async def cut() -> None:
        if connection._socket is not None:
            connection._socket.transport.abort()

    asyncio.run_coroutine_threadsafe(cut(), connection._loop).result(HANG_S)


def whole(stream: Any) -> tuple[list[Chunk], np.ndarray, list[list[int]]]:
    chunks = list(stream)
    return chunks, np.concatenate([chunk.pcm for chunk in chunks]), [f for c in chunks for f in c.codes.tolist()]


def say_at_once(engine: Any, **options: Any) -> Any:
    return engine.speak(LONG, **options)


def say_in_pieces(engine: Any, **options: Any) -> Any:
    stream = engine.speak(None, **options)
    for word in LONG.split(" "):
        stream.feed(f"{word} ")
    stream.finish()
    return stream


@pytest.mark.parametrize("say", [say_at_once, say_in_pieces])
@pytest.mark.parametrize("lost_after", [1, 4, 6])
def test_nobody_hears_that_a_server_was_lost(
    servers: list[Served], remote: RemoteEngine, say: Callable[..., Any], lost_after: int
) -> None:
    options = {"seed": lost_after, "max_frames": FRAMES, "return_codes": True}
    near = say(servers[0].engine, **options)
    _, pcm, codes = whole(near)
    stream = say(remote, **options, max_ahead_s=0.5)
    chunks = [next(stream) for _ in range(lost_after)]
    first = stream._session.connection
    lose(stream)
    chunks += whole(stream)[0]
    assert stream._session.connection is not first
    assert [frame for chunk in chunks for frame in chunk.codes.tolist()] == codes
    np.testing.assert_array_equal(np.concatenate([chunk.pcm for chunk in chunks]), pcm)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.sample_offset for chunk in chunks] == list(np.cumsum([0, *(len(c.pcm) for c in chunks)])[:-1])
    assert stream.facts().frames == len(codes)
    assert stream.finish_reason == near.finish_reason


def test_it_may_be_lost_again_and_before_the_first_chunk(servers: list[Served], remote: RemoteEngine) -> None:
    expected = servers[0].engine.speak(LONG, seed=5, max_frames=FRAMES).read_all()
    stream = remote.speak(LONG, seed=5, max_frames=FRAMES, max_ahead_s=0.3)
    lose(stream)
    heard = []
    for number, chunk in enumerate(stream):
        heard.append(chunk.pcm)
        assert chunk.codes is None, "which nobody asked for"
        if number in (1, 3):
            lose(stream)
    np.testing.assert_array_equal(np.concatenate(heard), expected)


def test_words_are_told_once(servers: list[Served], remote: RemoteEngine) -> None:
    stream = remote.speak(LONG, seed=5, max_frames=400, max_ahead_s=0.3, word_times=True)
    words = []
    for number, _ in enumerate(stream):
        words += stream.take_words()
        if number == 6:
            lose(stream)
    words += stream.take_words()
    assert [word.text for word in words] == LONG.split()


def test_each_server_is_asked_once_in_a_row(servers: list[Served]) -> None:
    with RemoteEngine([servers[0].url, "http://127.0.0.1:9", "http://127.0.0.1:9"]) as remote:
        stream = remote.speak(LONG, seed=5, max_frames=400, max_ahead_s=0.3)
        next(stream)
        lose(stream)
        assert stream.read_all().size, "it has come back to the one that works"
    with RemoteEngine(["http://127.0.0.1:9", "http://127.0.0.1:9"]) as remote, pytest.raises(ConnectionFailedError):
        remote.speak(TEXT).read_all()
    with RemoteEngine(["http://127.0.0.1:9", servers[0].url]) as remote:
        assert remote.speak(TEXT, max_frames=2).read_all().size
        assert remote._servers.first is remote._servers.all[1], "which is asked first from now on"


def test_nobody_goes_on_with_what_is_unwanted(remote: RemoteEngine) -> None:
    stream = remote.speak(LONG, seed=5, max_frames=400, max_ahead_s=0.3)
    session = stream._session
    first, chunk = session.connection, next(stream)
    session.cancel()
    codes = np.ones((chunk.frames, 16), np.int64)
    session.take_packet(Packet(session.id, 1, 0, chunk.frames, chunk.pcm, codes, final=False))  # it was on its way
    session.fail(ConnectionFailedError("lost"))
    assert session.connection is first
    assert stream.finish_reason in ("error", "cancelled"), "the answer to the cancel may come first"


def test_a_refused_request_is_refused_by_one(servers: list[Served], remote: RemoteEngine) -> None:
    with pytest.raises(InvalidRequestError, match="nobody"):
        remote.speak(TEXT, voice="nobody").read_all()
    assert remote._servers.first is remote._servers.all[0]
    with pytest.raises(SettingsError, match="expected one"):
        RemoteEngine([])


@pytest.mark.parametrize("status", ["draining", "warming up"])
def test_a_server_that_begins_nothing_lets_the_next_one_begin(
    servers: list[Served], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = servers[1].engine.speak(TEXT, seed=5, max_frames=4).read_all()
    busy, other = servers
    monkeypatch.setattr(busy.server.service, *(("draining", True) if status == "draining" else ("_warm", False)))
    assert busy.server.service.status == status
    with RemoteEngine([busy.url, other.url]) as remote:
        np.testing.assert_array_equal(remote.speak(TEXT, seed=5, max_frames=4).read_all(), expected)
    with RemoteEngine([busy.url, busy.url]) as remote, pytest.raises(CapacityError):
        remote.speak(TEXT).read_all()


def test_what_a_full_server_refuses_another_one_says(tiny_custom_voice: Checkpoint, servers: list[Served]) -> None:
    expected = servers[1].engine.speak(TEXT, seed=5, max_frames=4).read_all()
    with (
        serving(tiny_custom_voice, fakes_with(frames=7), server={"max_streams_per_connection": 1}) as small,
        RemoteEngine([small.url, servers[1].url]) as remote,
        remote.speak(None) as first,
    ):
        np.testing.assert_array_equal(remote.speak(TEXT, seed=5, max_frames=4).read_all(), expected)
        first.feed(TEXT)
        first.finish()
        assert first.read_all().size


GOOD = np.ones((3, 16), "<u2")


@pytest.mark.parametrize(
    ("after", "complaint"),
    [
        ({"codes": "%%%"}, "after.codes cannot be read"),
        ({"codes": b64encode(bytes(30)).decode()}, "after.codes cannot be read"),
        ({"codes": b64encode(np.full((1, 16), 60_000, "<u2").tobytes()).decode()}, "none of this checkpoint's"),
        ({"codes": b64encode(np.ones((9, 16), "<u2").tobytes()).decode()}, "at most 8 frames of 16"),
        ({"codes": b64encode(GOOD.tobytes()).decode(), "ends": [{"frame": 2, "reason": "eos"},
          {"frame": 1, "reason": "eos"}]}, "expected rising numbers"),
        ({"codes": b64encode(GOOD.tobytes()).decode(), "ends": [{"frame": 2, "reason": "limit"}]}, "reason"),
        ({"codes": b64encode(GOOD.tobytes()).decode(), "ahead_s": -1}, "ahead_s"),
        ({"ends": []}, "codes"),
    ],
)  # fmt: skip
def test_what_no_server_can_have_said_is_refused(servers: list[Served], after: dict[str, Any], complaint: str) -> None:
    with connect_socket(servers[0].url.replace("http", "ws") + "/v1/speak") as talk:
        talk.send(json.dumps({"type": "open", "id": "a", "text": TEXT, "max_frames": 8, "seed": 1, "after": after}))
        answer = json.loads(talk.recv(HANG_S))
        assert answer["type"] == "error"
        assert complaint in answer["error"]["message"]
        talk.send(json.dumps({"type": "open", "id": "b", "text": TEXT, "max_frames": 8, "seed": 1}))
        assert json.loads(talk.recv(HANG_S))["type"] == "opened", "others go on"


def test_what_is_to_be_resumed_needs_codes(servers: list[Served]) -> None:
    with connect_socket(servers[0].url.replace("http", "ws") + "/v1/speak") as talk:
        asked = {"type": "open", "id": "a", "text": TEXT, "max_frames": 8, "resumable": True}
        talk.send(json.dumps(asked))
        assert "ask for return_codes" in json.loads(talk.recv(HANG_S))["error"]["message"]
