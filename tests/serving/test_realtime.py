"""``WS /v1/realtime`` by OpenAI's own client: what it speaks, and how it is interrupted."""

import asyncio
import base64
import json
from typing import Any

import pytest
from websockets.sync.client import connect

from megatalker.serving.protocol.messages import WordTime
from megatalker.serving.server.realtime_events import ResponseItem
from realtime_client import CLOSING, OPENING, SEED, audio, client, spoken, talking, transcript
from serving import ENDLESS, TEXT, Served, Server, endless, fakes_with, serving
from waiting import HANG_S, eventually

pytestmark = pytest.mark.asyncio


# ---- what it speaks


async def test_a_message_is_spoken_as_over_http(shared: Served) -> None:
    async with talking(shared) as voice:
        session = await voice.update(audio={"output": {"voice": "serena"}})
        assert (session.type, session.audio.output.voice) == ("realtime", "serena")
        await voice.write()
        events = await voice.speak(metadata={"topic": "greeting"})
    kinds = [event.type for event in events]
    assert kinds[: len(OPENING)] == OPENING
    assert kinds[-len(CLOSING) :] == CLOSING
    deltas = {"response.output_audio.delta", "response.output_audio_transcript.delta"}
    assert set(kinds[len(OPENING) : -len(CLOSING)]) == deltas
    assert audio(events) == spoken(shared, voice="serena") != spoken(shared, voice="ryan")
    assert transcript(events) == TEXT
    done = events[-1].response
    assert (done.status, done.metadata, done.usage.total_tokens) == ("completed", {"topic": "greeting"}, 0)
    assert done.output[0].content[0].transcript == TEXT
    assert done.output[0].id == events[1].item.id
    assert done.megatalker["seed"] == 5
    assert len({event.event_id for event in events}) == len(events)
    eventually(lambda: not shared.server.service.running, "nothing runs")


async def test_words_come_with_the_audio_that_they_end_in(serve: Server) -> None:
    served = serve(fakes_with())
    async with talking(served) as voice:
        await voice.write()
        events = await voice.speak()
    sent, words = 0.0, []
    for event in events:
        if event.type == "response.output_audio.delta":
            sent += len(base64.b64decode(event.delta)) / 48_000
        elif event.type == "response.output_audio_transcript.delta":
            words.append((event.delta, sent))
    assert len(words) > 3, "word by word, not at the end"
    assert words[0][1] < 0.7 * sent


@pytest.mark.parametrize(
    ("wanted", "wishes", "shown"),
    [
        ({"audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}}}}, {}, ("audio/pcm", 24_000)),
        (
            {"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
            {"response_format": "pcm_mulaw"},
            ("audio/pcmu", 8_000),
        ),
        ({"output_audio_format": "g711_alaw"}, {"response_format": "pcm_alaw"}, ("audio/pcma", 8_000)),
        ({"output_audio_format": "pcm16", "speed": 2}, {"speed": 2}, ("audio/pcm", 24_000)),
        ({"audio": {"output": {"speed": 0.5, "voice": {"id": "ryan"}}}}, {"speed": 0.5, "voice": "ryan"}, None),
        ({"voice": "ash", "modalities": ["text", "audio"]}, {"voice": "ash"}, None),
    ],
)
async def test_formats_speeds_and_voices(
    shared: Served, wanted: dict[str, Any], wishes: dict[str, Any], shown: tuple[str, int] | None
) -> None:
    async with talking(shared) as voice:
        session = await voice.update(**wanted, turn_detection=None, tools=[], unheard_of=3)
        if shown is not None:
            assert (session.audio.output.format.type, session.audio.output.format.rate) == shown
        await voice.write()
        assert audio(await voice.speak()) == spoken(shared, **wishes)
        await voice.write()
        other = {"audio": {"output": {"voice": "serena"}}}
        expected = spoken(shared, **{**wishes, "voice": "serena"})
        assert audio(await voice.speak(**other)) == expected, "for one response"
        await voice.write()
        assert audio(await voice.speak()) == spoken(shared, **wishes), "and no longer"


async def test_what_is_spoken_is_what_was_not_spoken_yet(shared: Served) -> None:
    async with talking(shared) as voice:
        first = await voice.write("One.", previous_item_id="root")
        item = {"type": "function_call_output", "output": "One.", "id": first.id}
        assert (await voice.refusal("conversation.item.create", item=item)).param == "item.id"
        await voice.write("Three.", role="assistant")
        await voice.write("Zero.", previous_item_id="root")
        await voice.write("Two.", role="system", previous_item_id=first.id)
        output = {"type": "function_call_output", "call_id": "call", "output": "Four."}
        await voice.send("conversation.item.create", item=output)
        assert (await voice.hear_until("conversation.item.done"))[-1].item.output == "Four."
        events = await voice.speak()
        assert audio(events) == spoken(shared, "Zero.\nOne.\nTwo.\nThree.\nFour.")
        await voice.write("Five.")
        assert audio(await voice.speak()) == spoken(shared, "Five.")
        given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Six."}]}]
        given.append({"type": "item_reference", "id": first.id})
        events = await voice.speak(input=given, conversation="none")
        assert audio(events) == spoken(shared, "Six.\nOne.")
        assert "conversation.item.added" not in [event.type for event in events]
        error = await voice.refusal("response.create")
        assert (error.code, error.type) == ("nothing_to_say", "InvalidRequestError")


@pytest.mark.parametrize(("checkpoint", "fate"), [("tiny_custom_voice", "ignored"), ("tiny_1b7", "followed")])
async def test_instructions_say_how_to_speak(checkpoint: str, fate: str, request: pytest.FixtureRequest) -> None:
    with serving(request.getfixturevalue(checkpoint)) as served:
        async with talking(served) as voice:
            session = await voice.update(instructions="Whisper.")
            assert session.megatalker["instructions"] == fate
            await voice.write()
            events = await voice.speak()
            assert events[-1].response.megatalker["instructions"] == fate
            assert audio(events) == spoken(served, instructions="Whisper.")


async def test_markup_and_other_fields_of_ours(shared: Served) -> None:
    text = 'One <break time="300ms"/> two.'
    async with talking(shared) as voice:
        await voice.update(megatalker={"seed": 5, "markup": "tags", "language": "english"})
        await voice.write(text)
        await voice.send("response.create")
        assert audio(await voice.hear_until("response.done")) == spoken(shared, text, markup="tags", language="english")


async def test_a_client_of_the_beta_protocol(shared: Served) -> None:
    async with (
        client(shared) as sdk,
        sdk.beta.realtime.connect(model="gpt-4o-realtime-preview") as connection,
    ):
        await connection.session.update(session={"voice": "ash", "output_audio_format": "g711_ulaw"})
        content: Any = [{"type": "input_text", "text": TEXT}]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await connection.response.create(response=SEED)  # type: ignore[arg-type]
        events: list[Any] = []
        async with asyncio.timeout(HANG_S):
            async for event in connection:
                events.append(event)
                if event.type == "response.done":
                    break
    assert events[1].session.output_audio_format == "g711_ulaw"
    kinds = [event.type for event in events]
    assert kinds[2] == "conversation.item.created"
    assert "response.audio.done" in kinds
    assert not [kind for kind in kinds if "output_audio" in kind or kind == "conversation.item.done"]
    assert audio(events) == spoken(shared, voice="ash", response_format="pcm_mulaw")
    assert transcript(events) == TEXT


async def test_a_page_that_offers_openais_subprotocol(shared: Served) -> None:
    with connect(shared.url.replace("http", "ws") + "/v1/realtime", subprotocols=["realtime", "other"]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "realtime"
        assert json.loads(socket.recv(HANG_S))["type"] == "session.created"


# ---- interruptions


async def test_all_that_was_played_is_kept_whole() -> None:
    item = ResponseItem()
    item.add([WordTime(word="Hello.", before="", start=0.0, end=1.0, joined=False)])
    item.audio_ms = 999.6
    item.truncate(999)
    assert item.text == "Hello."
    item.truncate(990)
    assert item.text == ""


async def test_nothing_is_heard_after_a_cancel(serve: Server) -> None:
    """Not even what a resampler has held back."""
    served = serve(endless(), **ENDLESS)
    async with talking(served) as voice:
        await voice.update(output_audio_format="g711_ulaw")
        await voice.write()
        await voice.send("response.create")
        events = await voice.hear_until("response.output_audio.delta")
        await voice.send("response.cancel")
        events += await voice.hear_until("response.done")
        assert len(audio(events)) % 640, "whole frames at 8 kHz"


async def test_a_response_is_cancelled_at_once(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    async with talking(served) as voice:
        await voice.write()
        name, _ = await voice.begin()
        error = await voice.refusal_amid("response.create")
        assert error.code == "conversation_already_has_active_response"
        error = await voice.refusal_amid("response.cancel", response_id="resp_other")
        assert error.code == "response_cancel_not_active"
        await voice.send("response.cancel", response_id=name)
        events = await voice.hear_until("response.done")
        assert [event.type for event in events if event.type != "response.output_audio.delta"][
            -len(CLOSING) :
        ] == CLOSING
        done = events[-1].response
        assert (done.id, done.status, done.status_details.reason) == (name, "cancelled", "client_cancelled")
        assert done.output[0].status == "incomplete"
        eventually(lambda: served.rows_free(fakes) and not served.server.service.running, "nothing is spoken")
        assert (await voice.refusal("response.cancel")).code == "response_cancel_not_active"
        assert (await voice.refusal("response.create")).code == "nothing_to_say", "what was cancelled was spoken"
        await voice.write()
        await voice.begin()
    eventually(lambda: served.rows_free(fakes) and not served.server.service.running, "and none when a client is gone")


async def test_a_response_that_waits_for_its_turn_is_cancelled(serve: Server) -> None:
    served = serve(endless(), **ENDLESS, max_streams=1)
    with served.engine.speak(TEXT) as occupant:
        await anext(occupant)
        async with talking(served) as voice:
            await voice.write()
            await voice.send("response.create", event_id="a")
            await voice.hear("response.created")
            await voice.send("response.cancel")
            done = (await voice.hear("response.done")).response
            assert (done.status, done.output) == ("cancelled", [])


async def test_a_response_is_cancelled_while_its_request_is_checked(
    serve: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(fakes_with())
    begin = served.server.service.begin

    async def never(*_arguments: Any, **_options: Any) -> None:
        await asyncio.Event().wait()

    async with talking(served) as voice:
        await voice.write()
        monkeypatch.setattr(served.server.service, "begin", never)
        await voice.send("response.create")
        await voice.hear("response.created")
        await voice.send("response.cancel")
        assert (await voice.hear("response.done")).response.status == "cancelled"
        monkeypatch.setattr(served.server.service, "begin", begin)
        await voice.write()
        assert audio(await voice.speak()) == spoken(served)


async def test_what_was_played_is_what_is_kept(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[WordTime] = []
    add = ResponseItem.add
    monkeypatch.setattr(ResponseItem, "add", lambda self, new: (words.extend(new), add(self, new))[1])
    async with talking(shared) as voice:
        await voice.update(speed=2)
        asked = await voice.write()
        events = await voice.speak()
        length_ms = len(audio(events)) / 48
        assert len(words) > 5
        assert 0.9 * length_ms < 1000 * words[-1].end < 1.1 * length_ms, "times of what is heard, at this speed"
        item = events[-1].response.output[0].id
        for part in (1.0, 0.8, 0.3, 0.0):
            end_ms = int(part * length_ms)
            await voice.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=end_ms)
            told = await voice.hear("conversation.item.truncated")
            assert (told.item_id, told.content_index, told.audio_end_ms) == (item, 0, end_ms)
            await voice.send("conversation.item.retrieve", item_id=item)
            kept = (await voice.hear("conversation.item.retrieved")).item.content[0].transcript
            assert kept == "".join(
                word.before + word.word for word in words if part == 1.0 or 1000 * word.end <= end_ms
            )
        error = await voice.refusal(
            "conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=int(length_ms)
        )
        assert (error.param, "ms of audio" in error.message) == ("audio_end_ms", True)
        error = await voice.refusal("conversation.item.truncate", item_id=asked.id, content_index=0, audio_end_ms=1)
        assert error.param == "item_id"
        await voice.send("conversation.item.delete", item_id=item)
        assert (await voice.hear("conversation.item.deleted")).item_id == item
        error = await voice.refusal("conversation.item.retrieve", item_id=item)
        assert (error.code, error.param) == ("item_not_found", "item_id")


async def test_truncating_what_is_spoken_ends_it(serve: Server) -> None:
    served = serve(endless(), **ENDLESS)
    async with talking(served) as voice:
        await voice.write()
        _, item = await voice.begin()
        await voice.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=80)
        events = await voice.hear_until("conversation.item.truncated")
        assert events[-2].response.status == "cancelled"
        await voice.send("conversation.item.retrieve", item_id=item)
        assert (await voice.hear("conversation.item.retrieved")).item.content[0].transcript == ""
