"""Whole conversations with the real agent: speech in, speech out, barge-in; no key, no microphone, no internet."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from pipecat.evals.client_transport import EvalClientRecorder
from pipecat.evals.results import EvalScriptResult
from pipecat.evals.scenario import EvalExpectation, EvalScriptScenario, EvalScriptTurn, EvalSendAfter
from pipecat.evals.session import EvalSession, EvalSessionParams

from agent_process import agent_at_work
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_benchmarks.vowels import RATE, utterance
from waiting import HANG_S

pytestmark = pytest.mark.slow

LOW, HIGH = 110.0, 190.0
ASKED, STOPPED = "Tell me about the sea.", "Wait, stop."
STORY = (
    "The sea is wide and deep. It covers most of the earth and holds nearly all of its water. "
    "Many animals live in it, from the smallest drifting things to the largest whales. "
    "Long ago sailors crossed it with nothing but the stars and the wind to guide them. "
    "They feared its storms and loved its calm. Today great ships carry goods from shore to shore. "
    "Far below, where no light reaches, there are mountains higher than any on land. "
    "Rivers bring it sand and salt, and the sun lifts its water into the clouds. "
    "So the rain that falls on the hills was once a part of it, and will be again."
)
SHORT = "All right."
ASK, STOP = "aeiaeiaei", "aeiaeia"
BARGE_IN_S = 2.5
FAST_WORD_S, SLOW_WORD_S = 0.03, 1.3  # a voice of random weights ends some sentences early
WINDOW_S, REST_S, QUIET = 0.04, 0.3, 0.01
THOUGHT_S = 1.0  # a rest before each answer that is longer than any within one


def test_a_spoken_conversation_with_barge_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvalClientRecorder, "GAP_S", 0)  # shorter rests than that would be left out of the recording
    for name, vowels, pitch in (("ask.wav", ASK, LOW), ("stop.wav", STOP, HIGH)):
        soundfile.write(tmp_path / name, utterance(vowels, pitch), RATE)
    with MockOpenAI({LOW: ASKED, HIGH: STOPPED}, {ASKED: STORY, STOPPED: SHORT}, THOUGHT_S) as mock:
        (tmp_path / "megatalker.toml").write_text(
            'backend = "reference"\nmax_frames = 60\n'
            '[backends.compiled]\ncompile = "off"\n'
            '[agent]\nturn_log = "turns.jsonl"\n'
            f'[agent.stt]\nurl = "{mock.url}"\nmodel = "ears"\n'
            f'[agent.llm]\nurl = "{mock.url}"\nmodel = "mind"\n'
        )
        with agent_at_work(tmp_path, environ={"MEGATALKER_BACKEND": "compiled"}) as agent:
            with urllib.request.urlopen(f"http://{agent.address}/agent") as reply:
                about = json.load(reply)
            result = asyncio.run(_talk(agent.address, tmp_path))

    assert about["backend"] == "compiled", "the environment wins over the file"
    assert result.passed, "\n".join([*map(str, result.failures), *result.debug_log])
    assert mock.heard == pytest.approx([LOW, HIGH], rel=0.1)

    _assert_turns_are_logged(tmp_path)

    kept = _kept(mock.conversations[-1])
    assert STORY.startswith(kept)
    assert 0 < len(kept) < len(STORY)
    reported = _reported_as_spoken(result.events_seen)
    assert kept.split()[: len(reported)] == reported
    assert len(kept.split()) - len(reported) <= 1, "at most the word that the interruption met on its way out"
    heard = _audible(tmp_path / "talk.wav")
    stop_begins, stop_ends = _when_said(utterance(STOP, HIGH), tmp_path / "talk.wav")
    story = [(start, min(end, stop_begins)) for start, end in heard[1:] if start < stop_begins]
    *_, speech_ends = (end for start, end in heard if start < stop_ends)
    assert stop_begins - story[0][0] > BARGE_IN_S - 0.8
    assert speech_ends == pytest.approx(stop_ends, abs=0.8), "the user is the last one heard"
    answer_begins = next(start for start, _ in heard if start > stop_ends)
    assert answer_begins - stop_ends > THOUGHT_S
    spoken_s = sum(end - start for start, end in story)
    assert SLOW_WORD_S > spoken_s / len(kept.split()) > FAST_WORD_S


def _assert_turns_are_logged(folder: Path) -> None:
    *turns, last = map(json.loads, (folder / "turns.jsonl").read_text().splitlines())
    assert [(turn["begun_by"], turn["outcome"]) for turn in turns] == [("speech", "answered")] * 2
    for turn in turns:
        assert list(turn["ms"])[-4:] == ["first token", "text to speech", "audio sent", "audio played"]
        assert set(turn["ms"]) >= {"turn detected", "transcript"}
        assert turn["stages_ms"]["first token"] >= 1000 * THOUGHT_S, "that is where the time went"
        assert sum(turn["stages_ms"].values()) == pytest.approx(turn["total_ms"], abs=1)
    assert last["summary"]["speech"]["turns"] == 2
    assert "first sound after the end of speech: p50 " in (folder / "agent.log").read_text()


async def _talk(address: str, folder: Path) -> EvalScriptResult:
    scenario = EvalScriptScenario(
        name="barge-in",
        user_audio=True,
        bot_audio=True,
        turns=[
            EvalScriptTurn(
                ASKED,
                audio=str(folder / "ask.wav"),
                expect=[
                    EvalExpectation("user_transcription", text_contains=ASKED),
                    EvalExpectation("bot_started_speaking"),
                    EvalExpectation("tts_response", text_contains="sea"),
                ],
            ),
            EvalScriptTurn(
                STOPPED,
                audio=str(folder / "stop.wav"),
                send_after=EvalSendAfter("bot_started_speaking", int(BARGE_IN_S * 1000)),
                expect=[
                    EvalExpectation("bot_interrupted", within_ms=5000),
                    EvalExpectation("user_transcription", text_contains=STOPPED),
                    EvalExpectation("bot_started_speaking"),
                    EvalExpectation("tts_response", text_contains="right"),
                    EvalExpectation("bot_stopped_speaking"),
                ],
            ),
        ],
    )
    params = EvalSessionParams(default_timeout_ms=int(1000 * HANG_S), record_path=str(folder / "talk.wav"))
    return await EvalSession.from_scenario(scenario, f"ws://{address}/ws", params=params).run()


def _kept(messages: list[dict[str, Any]]) -> str:
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", "assistant", "user"]
    return str(messages[2]["content"])


def _reported_as_spoken(events: list[dict[str, Any]]) -> list[str]:
    """The words of the agent's first turn that its clients saw as spoken."""
    begin = next(at for at, event in enumerate(events) if event["type"] == "bot_started_speaking")
    end = next(at for at, event in enumerate(events) if at > begin and event["type"] == "bot_interrupted")
    return [event["text"] for event in events[begin:end] if event["type"] == "tts_response"]


def _when_said(words: NDArray[np.int16], recording: Path) -> tuple[float, float]:
    """Return the start and end of ``words`` in seconds: where the recording resembles them most."""
    samples, rate = soundfile.read(recording)
    room = len(samples) + len(words)
    likeness = np.fft.irfft(np.fft.rfft(samples, room) * np.fft.rfft(words, room).conj(), room)
    begins = int(np.argmax(likeness[: len(samples)])) / rate
    return begins, begins + len(words) / rate


def _audible(recording: Path) -> list[tuple[float, float]]:
    """Return the audible parts, ``(start, end)`` in seconds; rests shorter than ``REST_S`` belong to them."""
    samples, rate = soundfile.read(recording)
    step = int(WINDOW_S * rate)
    loud = [float(np.abs(samples[at : at + step]).max()) > QUIET for at in range(0, len(samples), step)]
    stretches: list[tuple[float, float]] = []
    for number in (number for number, is_loud in enumerate(loud) if is_loud):
        start, end = number * WINDOW_S, (number + 1) * WINDOW_S
        if stretches and start - stretches[-1][1] < REST_S:
            start = stretches.pop()[0]
        stretches.append((start, end))
    return stretches
