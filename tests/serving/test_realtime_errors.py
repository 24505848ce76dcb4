"""``WS /v1/realtime``: what goes wrong, and what cannot harm a server."""

import asyncio
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from megatalker.serving.protocol.realtime_messages import MOST_ITEMS
from realtime_client import CLOSING, RealtimeClient, audio, client, spoken, talking, transcript
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with
from waiting import HANG_S, eventually

pytestmark = pytest.mark.asyncio


# ---- what goes wrong


@pytest.mark.parametrize(
    ("kind", "fields", "field", "code"),
    [
        (
            "session.update",
            {"session": {"audio": {"output": {"speed": 9}}}},
            "session.audio.output.speed",
            "bad_request",
        ),
        ("session.update", {"session": {"speed": "fast"}}, "session.speed", "bad_request"),
        ("session.update", {"session": {"output_audio_format": "mp3"}}, "session.output_audio_format.type", None),
        ("session.update", {"session": {"audio": {"output": {"voice": "nobody"}}}}, "session.audio.output.voice", None),
        ("session.update", {"session": {"voice": "nobody"}}, "session.voice", None),
        ("session.update", {"session": {"output_modalities": ["text"]}}, "session.output_modalities", None),
        ("session.update", {"session": {"type": "transcription"}}, "session.type", None),
        ("session.update", {"session": {"megatalker": {"seed": -1}}}, "session.megatalker.seed", None),
        ("session.update", {}, "session", None),
        ("conversation.item.create", {"item": {"type": "call"}}, "item.type", None),
        (
            "conversation.item.create",
            {"item": {"type": "message", "role": "user", "content": [{"type": "input_image"}]}},
            "item.content.0.type",
            None,
        ),
        (
            "conversation.item.create",
            {"item": {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AAAA"}]}},
            "item.content.0",
            None,
        ),
        (
            "conversation.item.create",
            {"item": {"type": "function_call_output", "output": "x"}, "previous_item_id": "none"},
            "previous_item_id",
            "item_not_found",
        ),
        ("conversation.item.truncate", {"item_id": "x", "audio_end_ms": -1}, "audio_end_ms", None),
        (
            "response.create",
            {"response": {"input": [{"type": "item_reference", "id": "x"}]}},
            "response.input.0.id",
            None,
        ),
        ("response.create", {"response": {"voice": "nobody"}}, "response.voice", None),
        ("input_audio_buffer.append", {"audio": "AAAA"}, "type", "unsupported"),
        ("output_audio_buffer.clear", {}, "type", "unsupported"),
    ],
)
async def test_a_wrong_event_is_answered_and_ends_nothing(
    shared: Served, kind: str, fields: dict[str, Any], field: str, code: str | None
) -> None:
    async with talking(shared) as voice:
        await voice.write()
        error = await voice.refusal(kind, **fields)
        assert error.param == field
        assert code in (None, error.code)
        assert audio(await voice.speak()) == spoken(shared), "as if nothing had been said"


@pytest.mark.parametrize("message", ["{", "[]", "{}", '{"type": 3}', '{"type": ["a"]}', b"\x00", "[" * 5000])
async def test_what_is_no_event_is_answered_and_ends_nothing(shared: Served, message: str | bytes) -> None:
    async with talking(shared) as voice:
        for earlier in ("session.update", "unknown"):
            await voice.send(earlier, session={}, event_id="earlier")
            await voice.connection.recv()
            await voice.connection._connection.send(message)
            error = (await voice.hear("error")).error
            assert (error.type, error.event_id) == ("InvalidRequestError", None)
        await voice.write()
        assert audio(await voice.speak()) == spoken(shared)


async def test_what_fails_before_it_is_heard_may_be_spoken_later(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, max_streams=1, max_waiting=0)
    async with talking(served) as voice:
        await voice.write()
        with served.engine.speak(TEXT) as occupant:
            await anext(occupant)
            done = (await voice.speak())[-1].response
            assert (done.status, done.status_details.error.code) == ("failed", "rate_limit_exceeded")
        eventually(lambda: not served.engine.metrics().active, "there is room")
        await voice.begin()


async def test_a_backend_that_fails_fails_the_response(serve: Server) -> None:
    def fail(call: int) -> None:
        if call == 3:
            raise RuntimeError("broken")

    served = serve(fakes_with(on_decode=fail))
    async with talking(served) as voice:
        await voice.write()
        events = await voice.speak()
        assert [event.type for event in events][-len(CLOSING) :] == CLOSING
        done = events[-1].response
        assert (done.status, done.status_details.error.type) == ("failed", "BackendFaultError")
        assert audio(events)
        assert done.output[0].status == "incomplete"


async def test_speech_that_leaves_text_out_is_incomplete(serve: Server) -> None:
    served = serve(fakes_with(), max_frames=5)
    async with talking(served) as voice:
        await voice.write()
        events = await voice.speak()
        done = events[-1].response
        assert (done.status, done.status_details.reason) == ("incomplete", "max_output_tokens")
        assert len(audio(events)) == 5 * 1920 * 2
        assert len(transcript(events)) < len(TEXT)


# ---- callers and bounds


async def test_keys_models_and_pages(serve: Server) -> None:
    served = serve(fakes_with(), server={"api_key": "secret", "strict": True, "model": "ours"})
    with pytest.raises(InvalidStatus) as refused:
        async with talking(served, "wrong"):
            pass
    assert refused.value.response.status_code == 401
    async with talking(served, "secret", model="ours") as voice:
        await voice.write()
        assert (await voice.speak())[-1].response.status == "completed"
    async with client(served, "secret") as sdk, sdk.realtime.connect(model="theirs") as connection:
        voice = RealtimeClient(connection)
        assert (await voice.hear("error")).error.code == "model_not_found"
        with pytest.raises(ConnectionClosed):
            await connection.recv()
    address = served.url.replace("http", "ws") + "/v1/realtime"
    headers = {"authorization": "Bearer secret"}
    with connect(address, origin="https://elsewhere.example", additional_headers=headers) as socket:  # type: ignore[arg-type]
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(HANG_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


async def test_two_connections_speak_at_a_time(shared: Served) -> None:
    async def one(name: str) -> bytes:
        async with talking(shared) as voice:
            await voice.update(voice=name)
            await voice.write()
            return audio(await voice.speak())

    heard = await asyncio.gather(one("ryan"), one("serena"))
    assert heard == [spoken(shared, voice="ryan"), spoken(shared, voice="serena")]


async def test_a_conversation_is_bounded(serve: Server) -> None:
    served = serve(fakes_with(frames=1), max_text_chars=1000)
    async with talking(served) as voice:
        first = await voice.write("a" * 900)
        item = {"type": "function_call_output", "output": "b" * 100}
        error = await voice.refusal("conversation.item.create", item=item)
        assert (error.code, "expected at most 128 with 1000" in error.message) == ("too_many_items", True)
        assert (await voice.speak())[-1].response.status == "completed"
        for _ in range(4):
            await voice.write("c" * 900)
            await voice.speak()
        error = await voice.refusal("conversation.item.retrieve", item_id=first.id)
        assert error.code == "item_not_found", "the oldest that were spoken are forgotten"
        for _ in range(MOST_ITEMS):
            await voice.write("d")
        error = await voice.refusal("conversation.item.create", item=item)
        assert error.code == "too_many_items"
        assert (await voice.speak())[-1].response.status == "completed"


async def test_a_connection_that_earns_too_many_errors_is_closed(serve: Server) -> None:
    served = serve(fakes_with())
    async with talking(served) as voice:
        for _ in range(1000):
            await voice.send("input_audio_buffer.clear")
        with pytest.raises(ConnectionClosed, match="1008"):
            await voice.hear_until("never")
