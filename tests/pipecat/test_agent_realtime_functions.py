"""Functions of a client of the agent's ``/v1/realtime``: the model calls them, and the client sends their output."""

import json
from typing import Any

import pytest

from agent_desk import AgentDesk, open_for_calls
from agent_realtime import ANSWERS, GREETING, SILENCE, agent, say, speech, use_stand_ins
from megatalker import Checkpoint
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_pipecat.agent.realtime.items import NO_OUTPUT
from realtime_client import RealtimeClient, talking, transcript

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "$defs": {"city": {"type": "string"}},
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "description": "The weather.", "parameters": PARAMETERS}
CLOCK = {"type": "function", "name": "clock"}
QUESTION, MOMENT, RAIN, WET = "Is it raining?", "One moment.", "rain", "It rains."
BOTH, SILENT = "Both, please.", ""
SCRIPT = {**ANSWERS, QUESTION: MOMENT, RAIN: WET, BOTH: SILENT, "noon": "Noon.", f'"{NO_OUTPUT}"': "I do not know."}
CALLS = {MOMENT: {"weather": '{"city": "Rome"}'}, SILENT: {"weather": "{}", "clock": "{}"}}
CALL = [
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "conversation.item.done",
    "response.output_item.done",
]


@pytest.fixture(autouse=True)
def engine(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(tiny_custom_voice, monkeypatch)


async def ask(voice: RealtimeClient, text: str) -> list[Any]:
    await voice.write(text)
    await voice.send("response.create")
    return await voice.hear_until("response.done")


async def give(voice: RealtimeClient, call_id: str, output: str) -> Any:
    item = {"type": "function_call_output", "call_id": call_id, "output": output}
    await voice.send("conversation.item.create", item=item)
    added = (await voice.hear("conversation.item.added")).item
    await voice.hear("conversation.item.done")
    return added


def told_of_calls(events: list[Any]) -> list[Any]:
    """Return the events about items that call functions."""
    items = {event.item.id for event in events if "item.added" in event.type and event.item.type == "function_call"}
    return [event for event in events if named(event) in items]


def named(event: Any) -> str | None:
    """Return the item that an event is about."""
    item = getattr(event, "item", None)
    return getattr(event, "item_id", None) if item is None else item.id


def kept(mock: MockOpenAI) -> list[tuple[str, Any]]:
    """The last conversation that the model was asked about, without the prompt and the texts of speech."""
    return [
        (message["role"], message.get("content") or [call["function"]["name"] for call in message["tool_calls"]])
        for message in mock.conversations[-1][1:]
    ]


async def test_the_model_calls_a_function_and_speaks_of_its_output() -> None:
    async with agent(SCRIPT, CALLS) as (voice, mock, _):
        session = await voice.update(tools=[WEATHER], tool_choice="auto")
        assert (session.tools[0].name, session.tools[0].parameters, session.tool_choice) == (
            "weather",
            PARAMETERS,
            "auto",
        )
        events = await ask(voice, QUESTION)
        calls = told_of_calls(events)
        assert [event.type for event in calls] == CALL
        assert (calls[0].item.status, calls[0].item.arguments) == ("in_progress", "")
        arguments = calls[3]
        assert (arguments.name, json.loads(arguments.arguments)) == ("weather", {"city": "Rome"})
        assert arguments.call_id == calls[5].item.call_id == "call_1_0"
        done = events[-1].response
        assert done.status == "completed"
        assert {item.type for item in done.output} == {"message", "function_call"}
        assert done.output[arguments.output_index].id == arguments.item_id
        assert transcript(events) == MOMENT
        await give(voice, arguments.call_id, RAIN)
        await voice.send("response.create")
        events = await voice.hear_until("response.done")
    assert transcript(events) == WET
    assert not told_of_calls(events)
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    assert mock.functions == 2 * [([{"type": "function", "function": function}], "auto")]
    said = [one for one in kept(mock) if one != ("assistant", MOMENT)]
    assert said == [("user", QUESTION), ("assistant", ["weather"]), ("tool", RAIN)]
    assert ("assistant", MOMENT) in kept(mock)


async def test_several_functions_and_an_answer_without_a_word() -> None:
    async with agent(SCRIPT, CALLS) as (voice, mock, _):
        await voice.update(tools=[WEATHER, CLOCK], tool_choice={"type": "function", "name": "clock"})
        events = await ask(voice, BOTH)
        done = events[-1].response
        assert (done.status, [item.name for item in done.output]) == ("completed", ["weather", "clock"])
        assert [event.output_index for event in told_of_calls(events) if event.type == CALL[3]] == [0, 1]
        rain, noon = (item.call_id for item in done.output)
        await give(voice, noon, "noon")
        await give(voice, rain, RAIN)
        await voice.update(tools=[])
        await voice.send("response.create")
        events = await voice.hear_until("response.done")
    assert transcript(events) in (WET, "Noon.")
    assert mock.functions[0][1] == {"type": "function", "function": {"name": "clock"}}
    assert mock.functions[1] == (None, None)
    assert sorted(content for role, content in kept(mock) if role == "tool") == ["noon", RAIN]


async def test_the_conversation_goes_on_without_an_output_and_takes_it_later() -> None:
    async with agent(SCRIPT, CALLS) as (voice, mock, _):
        await voice.update(tools=[WEATHER])
        call_id = told_of_calls(await ask(voice, QUESTION))[3].call_id
        await say(voice, speech().tobytes() + SILENCE)  # somebody speaks while the client computes
        await voice.hear_until("response.done")
        assert ("tool", json.dumps(NO_OUTPUT)) in kept(mock)
        output = await give(voice, call_id, RAIN)
        assert transcript(await ask(voice, GREETING)) == ANSWERS[GREETING]
        assert ("tool", RAIN) in kept(mock)
        await voice.send("conversation.item.delete", item_id=output.id)
        await voice.hear("conversation.item.deleted")
        await ask(voice, GREETING)
        assert ("tool", RAIN) in kept(mock), "a call without an answer is an error of the model"


async def test_calls_are_items_that_clients_write_and_delete() -> None:
    async with agent(SCRIPT, CALLS) as (voice, mock, _):
        await voice.write(QUESTION)
        call = {"type": "function_call", "call_id": "mine", "name": "weather", "arguments": "{}"}
        await voice.send("conversation.item.create", item=call)
        item = (await voice.hear("conversation.item.added")).item
        await voice.hear("conversation.item.done")
        assert "there already" in (await voice.refusal("conversation.item.create", item=call)).message
        await give(voice, "mine", RAIN)
        await voice.send("response.create")
        assert transcript(await voice.hear_until("response.done")) == WET
        assert kept(mock) == [("user", QUESTION), ("assistant", ["weather"]), ("tool", RAIN)]
        await voice.send("conversation.item.delete", item_id=item.id)
        await voice.hear("conversation.item.deleted")
        await ask(voice, GREETING)
    assert kept(mock) == [("user", QUESTION), ("assistant", WET), ("user", GREETING)]


async def test_an_agent_without_a_model_calls_nothing() -> None:
    async with open_for_calls(AgentDesk(None)) as address, talking(f"http://{address}") as voice:
        error = await voice.refusal("session.update", session={"tools": [WEATHER]})
    assert (error.code, error.param) == ("unsupported", "session.tools")
