"""``WS /v1/realtime`` of the agent by OpenAI's own client: speech to text, model and speech in one conversation."""

import asyncio
from typing import Any

import numpy as np
import pytest
from openai.types.realtime import ResponseCreatedEvent, ResponseDoneEvent
from pipecat.frames.frames import Frame, InterruptionFrame, LLMRunFrame
from pipecat.processors.frame_processor import FrameDirection

from agent_realtime import (
    ANSWERS,
    ASKED,
    FRAMES,
    GREETING,
    HIGH,
    LOW,
    SILENCE,
    STOPPED,
    STORY,
    agent,
    push_to_talk,
    say,
    speech,
    use_stand_ins,
)
from megatalker import Checkpoint
from megatalker.serving.server.realtime_events import ResponseItem
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_pipecat.agent.conversation import Conversation
from megatalker_pipecat.agent.realtime.answers import Answers
from megatalker_pipecat.agent.realtime.stages import CommittedSpeech
from megatalker_pipecat.agent.reception import Reception
from phone_call import to_ulaw
from realtime_client import CLOSING, OPENING, audio, transcript
from waiting import HANG_S

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

DELTAS = {"response.output_audio.delta", "response.output_audio_transcript.delta"}
LAST_WORDS = "conversation.item.input_audio_transcription.completed"


@pytest.fixture(autouse=True)
def engine(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(tiny_custom_voice, monkeypatch)


def kinds(events: list[Any]) -> list[str]:
    return [event.type for event in events]


def contents(mock: MockOpenAI) -> list[tuple[str, str]]:
    """The last conversation that the model was asked about, without the prompt."""
    return [(message["role"], message["content"]) for message in mock.conversations[-1][1:]]


# ---- what it answers


async def test_text_is_answered_in_speech() -> None:
    async with agent() as (voice, mock, _):
        await voice.write(GREETING)
        await voice.send("response.create", response={"metadata": {"topic": "greeting"}})
        events = await voice.hear_until("response.done")
        await voice.write(ASKED)
        await voice.send("response.create")
        await voice.hear_until("response.done")
    assert kinds(events)[: len(OPENING)] == OPENING
    assert kinds(events)[-len(CLOSING) :] == CLOSING
    assert set(kinds(events)[len(OPENING) : -len(CLOSING)]) == DELTAS
    assert transcript(events) == ANSWERS[GREETING]
    samples = np.frombuffer(audio(events), "<i2")
    assert len(samples) / 24_000 == pytest.approx(FRAMES * 0.08, abs=0.1)
    assert np.abs(samples.astype(int)).max() > 1000
    done = events[-1].response
    assert (done.status, done.metadata) == ("completed", {"topic": "greeting"})
    assert done.output[0].content[0].transcript == ANSWERS[GREETING]
    assert contents(mock) == [("user", GREETING), ("assistant", ANSWERS[GREETING]), ("user", ASKED)]


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({}, 24_000),
        ({"format": {"type": "audio/pcm", "rate": 16_000}}, 16_000),
        ({"format": {"type": "audio/pcmu"}}, 8000),
    ],
)
async def test_a_committed_message_is_transcribed_and_answered(given: dict[str, Any], rate: int) -> None:
    async with agent() as (voice, mock, _):
        session = await push_to_talk(voice, **given)
        assert session.audio.input.turn_detection is None
        assert session.audio.input.format.rate == rate
        spoken = speech(rate=rate)
        await say(voice, to_ulaw(spoken) if rate == 8000 else spoken.tobytes())
        await voice.send("input_audio_buffer.commit")
        await voice.send("response.create")
        events = await voice.hear_until("response.done")
    heard = ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done", LAST_WORDS]
    assert kinds(events)[:5] == [*heard, "response.created"]
    assert events[3].transcript == ASKED
    assert len({event.item_id for event in (events[0], events[3])} | {events[1].item.id}) == 1
    assert transcript(events) == STORY
    assert contents(mock) == [("user", ASKED)]
    assert mock.heard == pytest.approx([LOW], rel=0.1)


async def test_the_server_hears_when_somebody_has_finished() -> None:
    async with agent() as (voice, mock, _):
        await say(voice, speech().tobytes() + SILENCE)
        events = await voice.hear_until("response.done")
    heard = ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed"]
    assert kinds(events)[:7] == [
        *heard,
        "conversation.item.added",
        "conversation.item.done",
        LAST_WORDS,
        "response.created",
    ]
    assert len({event.item_id for event in events[:3]}) == 1
    assert 0 <= events[0].audio_start_ms < 1000 < events[1].audio_end_ms < 4000
    assert events[5].transcript == ASKED
    assert transcript(events) == STORY
    assert contents(mock) == [("user", ASKED)]


async def test_output_formats_and_voices() -> None:
    async with agent() as (voice, _, _):
        session = await voice.update(audio={"output": {"format": {"type": "audio/pcmu"}, "voice": "serena"}})
        assert (session.audio.output.format.type, session.audio.output.voice) == ("audio/pcmu", "serena")
        await voice.update(audio={"output": {"voice": "alloy"}}, instructions="Be brief.")
        await voice.write(GREETING)
        await voice.send("response.create")
        events = await voice.hear_until("response.done")
    assert len(audio(events)) / 8000 == pytest.approx(FRAMES * 0.08, abs=0.1)


async def test_instructions_are_the_models() -> None:
    async with agent() as (voice, mock, _):
        assert (await voice.update(instructions="Speak like a pirate.")).instructions == "Speak like a pirate."
        await voice.write(GREETING)
        await voice.send("response.create")
        await voice.hear_until("response.done")
    assert mock.conversations[-1][0] == {"role": "system", "content": "Speak like a pirate."}


async def test_a_greeting_is_a_response() -> None:
    async with agent(greeting="Good evening.") as (voice, mock, _):
        events = await voice.hear_until("response.done")
        await voice.write(GREETING)
        await voice.send("response.create")
        await voice.hear_until("response.done")
    assert transcript(events) == "Good evening."
    assert events[-1].response.status == "completed"
    assert contents(mock) == [("assistant", "Good evening."), ("user", GREETING)]


async def test_words_that_come_before_their_audio_are_told_after_it() -> None:
    told: list[tuple[str, Any]] = []

    async def tell(kind: str, **fields: Any) -> None:
        told.append((kind, fields.get("delta")))

    async def add(_item: ResponseItem) -> None:
        """Nothing."""

    answers = Answers(tell, add, "conversation")
    answers.open()
    await answers.create()
    await answers.word("Good", joined=False)
    await answers.audio(bytes(9600))
    await answers.word("day", joined=False)
    await answers.end()
    deltas = [delta for kind, delta in told if kind in DELTAS]
    assert deltas[1:] == ["Good", " day"]
    assert [kind for kind, _ in told][:2] == ["response.created", "response.output_item.added"]


# ---- how it is interrupted


async def test_somebody_who_speaks_interrupts() -> None:
    async with agent() as (voice, mock, _):
        await say(voice, speech().tobytes() + SILENCE)
        await voice.hear_until("response.output_audio_transcript.delta")
        await say(voice, speech(HIGH, vowels="aeiaeia").tobytes() + SILENCE)
        cut = await voice.hear_until("response.done")
        answer = await voice.hear_until("response.done")
    done = cut[-1].response
    assert (done.status, done.status_details.reason) == ("cancelled", "turn_detected")
    assert "input_audio_buffer.speech_started" in kinds(cut)
    kept = done.output[0].content[0].transcript
    assert STORY.startswith(kept)
    assert 0 < len(kept) < len(STORY)
    assert len(audio(cut)) / 48_000 < 0.8 * 4 * FRAMES * 0.08, "audio comes as it should be heard"
    assert transcript(answer) == ANSWERS[STOPPED]
    user, assistant, stop = contents(mock)
    assert (user, stop) == (("user", ASKED), ("user", STOPPED))
    assert STORY.startswith(assistant[1])
    assert 0 < len(assistant[1]) < len(STORY)


async def test_cancel_and_truncate() -> None:
    async with agent() as (voice, mock, _):
        await voice.write(ASKED)
        await voice.send("response.create")
        begun = await voice.hear_until("response.output_audio_transcript.delta")
        begun += await voice.hear_until("response.output_audio_transcript.delta")
        item = begun[1].item.id
        error = await voice.refusal_amid("response.create")
        assert error.code == "conversation_already_has_active_response"
        await voice.send("response.cancel")
        cut = await voice.hear_until("response.done")
        assert (cut[-1].response.status, cut[-1].response.status_details.reason) == ("cancelled", "client_cancelled")
        assert (await voice.refusal("response.cancel")).code == "response_cancel_not_active"
        await voice.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=60)
        assert (await voice.hear("conversation.item.truncated")).audio_end_ms == 60
        await voice.send("conversation.item.retrieve", item_id=item)
        kept = (await voice.hear("conversation.item.retrieved")).item.content[0].transcript
        await voice.write(GREETING)
        await voice.send("response.create")
        answer = await voice.hear_until("response.done")
    assert transcript(answer) == ANSWERS[GREETING], "nothing of what was cancelled"
    assert kept == STORY[: len(kept)]
    assert len(kept) < len(cut[-1].response.output[0].content[0].transcript)
    assert contents(mock) == [("user", ASKED), ("assistant", kept), ("user", GREETING)]


async def test_a_response_that_has_not_begun_is_cancelled() -> None:
    async with agent() as (voice, _, _):
        await voice.write(ASKED)
        await voice.send("response.create")
        await voice.send("response.cancel")
        events = await voice.hear_until("response.done")
        assert events[-1].response.status == "cancelled"
        await voice.write(GREETING)
        await voice.send("response.create")
        answer = await voice.hear_until("response.done")
    assert transcript(answer) == ANSWERS[GREETING]


async def test_each_response_ends_whenever_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption travels both ways from the turn detection: what waits in front of it is lost, too."""
    conversations: list[Conversation] = []
    hold, process = Reception.hold, CommittedSpeech.process_frame

    async def recorded(reception: Reception, conversation: Conversation) -> None:
        conversations.append(conversation)
        await hold(reception, conversation)

    async def hesitant(stage: CommittedSpeech, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, LLMRunFrame):
            await asyncio.sleep(0.05)
        await process(stage, frame, direction)

    monkeypatch.setattr(Reception, "hold", recorded)
    monkeypatch.setattr(CommittedSpeech, "process_frame", hesitant)
    async with agent() as (voice, _, _):
        await voice.write(GREETING)
        begun, ended = set[str](), set[str]()

        async def hear() -> None:
            event = await asyncio.wait_for(voice.connection.recv(), HANG_S)
            if isinstance(event, ResponseCreatedEvent | ResponseDoneEvent):
                (begun if isinstance(event, ResponseCreatedEvent) else ended).add(str(event.response.id))

        for moment in range(8):
            await voice.send("response.create")
            while begun == ended:
                await hear()
            await asyncio.sleep(0.004 * moment)
            user, up = conversations[0].user, FrameDirection.UPSTREAM
            await (user.broadcast_interruption() if moment % 2 else user.push_frame(InterruptionFrame(), up))
            while begun != ended:
                await hear()


async def test_items_are_the_models_context() -> None:
    async with agent() as (voice, mock, _):
        first = await voice.write(GREETING)
        gone = await voice.write("Forget me.")
        await voice.write("Good day.", previous_item_id="root")
        await voice.write("Yes?", role="assistant", previous_item_id=first.id)
        await voice.write("Be kind.", role="system", previous_item_id=first.id)
        await voice.send("conversation.item.delete", item_id=gone.id)
        await voice.hear("conversation.item.deleted")
        await voice.send("response.create")
        await voice.hear_until("response.done")
    assert contents(mock) == [("user", "Good day."), ("user", GREETING), ("system", "Be kind."), ("assistant", "Yes?")]


async def test_a_client_that_leaves_in_the_middle_of_a_response_ends_it() -> None:
    async with agent() as (voice, _, desk):
        await voice.write(ASKED)
        await voice.send("response.create")
        await voice.hear_until("response.output_audio.delta")
        assert desk.reception.count == 1
        voice.connection._connection.transport.abort()  # without a word
        await asyncio.wait_for(desk.over.wait(), HANG_S)
        assert desk.reception.count == 0
