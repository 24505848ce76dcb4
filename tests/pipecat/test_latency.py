"""How long turns take: what each begins with, which moments come, what was cut; a log of them, and its summary."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    EndFrame,
    Frame,
    InputTransportMessageFrame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMMessagesAppendFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import FramePushed
from pipecat.observers.user_bot_latency_observer import UserBotLatencyObserver
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from megatalker.errors import SettingsError
from megatalker_pipecat import TurnLatencyObserver
from megatalker_pipecat.agent.turn_log import TurnLog
from megatalker_pipecat.latency import Moment, Turn

AUDIO = TTSAudioRawFrame(b"", 24000, 1)
STOP_S = 0.2
EPOCH = 1_700_000_000.0
ANSWER: list[tuple[float, Frame]] = [
    (0.70, LLMFullResponseStartFrame()),
    (1.00, LLMTextFrame("Hello ")),
    (1.05, LLMTextFrame("there.")),
    (1.10, TTSStartedFrame()),
    (1.30, AUDIO),
    (1.34, BotStartedSpeakingFrame()),
    (1.40, AUDIO),
]
"""Times at which frames are pushed; in :data:`SPOKEN` the user's last sound is at 0."""
SPOKEN: list[tuple[float, Frame]] = [
    (-1.0, VADUserStartedSpeakingFrame()),
    (STOP_S, VADUserStoppedSpeakingFrame(stop_secs=STOP_S, timestamp=EPOCH + STOP_S)),
    (0.45, TranscriptionFrame("Hi.", "user", "now")),
    (0.60, UserStoppedSpeakingFrame()),
]


async def observed(frames: Sequence[tuple[float, Frame]]) -> list[Turn]:
    observer, turns = TurnLatencyObserver(), list[Turn]()

    async def note(_observer: object, turn: Turn) -> None:
        turns.append(turn)

    observer.add_event_handler("on_turn", note)
    for at, frame in frames:
        await observer.on_push_frame(pushed(at, frame))
    return turns


def pushed(at: float, frame: Frame) -> FramePushed:
    source, frame = (PLAYER, frame.frame) if isinstance(frame, Played) else (SOMEBODY, frame)
    source = PLAYER if isinstance(frame, BotStartedSpeakingFrame) else source
    return FramePushed(source, SOMEBODY, frame, FrameDirection.DOWNSTREAM, round((100 + at) * 1e9), source is SOMEBODY)


class Played(Frame):
    """A frame that the output transport passes on."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame


SOMEBODY, PLAYER = FrameProcessor(), BaseOutputTransport(TransportParams())


def later(by: float, frames: Sequence[tuple[float, Frame]]) -> list[tuple[float, Frame]]:
    return [(at + by, frame) for at, frame in frames]


def shown(turn: Turn) -> dict[str, float]:
    return {moment.value: round(ms) for moment, ms in turn.ms.items()}


@pytest.mark.asyncio
async def test_a_spoken_turn() -> None:
    (turn,) = await observed([*SPOKEN, (0.65, EndFrame()), *ANSWER])  # the end comes behind the answer
    assert (turn.number, turn.begun_by, turn.outcome) == (1, "speech", "answered")
    assert shown(turn) == {
        "transcript": 450,
        "turn detected": 600,
        "first token": 1000,
        "text to speech": 1100,
        "audio sent": 1300,
        "audio played": 1340,
    }
    assert sum(turn.stages_ms.values()) == pytest.approx(turn.total_ms)
    assert str(turn) == (
        "turn 1: first sound 1340 ms after the end of speech (transcript +450, turn detected +150, "
        "first token +400, text to speech +100, audio sent +200, audio played +40)"
    )


@pytest.mark.asyncio
async def test_the_total_is_that_of_pipecat() -> None:
    now = 0.0
    theirs, found = UserBotLatencyObserver(time_source=lambda: EPOCH + now), list[float]()

    async def note(_observer: object, seconds: float) -> None:
        found.append(seconds)

    theirs.add_event_handler("on_latency_measured", note)
    for at, frame in SPOKEN + ANSWER:
        now = at
        await theirs.on_push_frame(pushed(at, frame))
    await theirs.cleanup()
    (turn,) = await observed(SPOKEN + ANSWER)
    assert [1000 * seconds for seconds in found] == pytest.approx([turn.total_ms], abs=0.1)


@pytest.mark.asyncio
async def test_a_pause_is_not_the_end_of_speech() -> None:
    pause = [
        (-3.0, VADUserStartedSpeakingFrame()),
        (-2.0, VADUserStoppedSpeakingFrame(stop_secs=STOP_S)),
        (-1.9, TranscriptionFrame("Well,", "user", "now")),
    ]
    (turn,) = await observed([*pause, *SPOKEN, *ANSWER])
    assert turn.total_ms == pytest.approx(1340)
    assert turn.ms[Moment.TRANSCRIPT] == pytest.approx(450), "the last one counts"


@pytest.mark.asyncio
async def test_a_transcript_that_came_before_the_silence_was_noticed() -> None:
    began, stopped, transcript, detected = SPOKEN
    (turn,) = await observed([began, (0.1, transcript[1]), stopped, detected, *ANSWER])
    assert next(iter(shown(turn).items())) == ("transcript", 100)


@pytest.mark.asyncio
async def test_a_turn_that_is_cut_before_any_sound_has_no_total() -> None:
    barge_in = [(1.2, VADUserStartedSpeakingFrame()), (1.2, InterruptionFrame())]
    cut, answered = await observed([*SPOKEN, *ANSWER[:4], *barge_in, *later(5, SPOKEN), *later(5, ANSWER)])
    assert (cut.outcome, cut.total_ms) == ("cut", None)
    assert str(cut) == (
        "turn 1: cut before any sound; after the end of speech: transcript +450, turn detected +150, "
        "first token +400, text to speech +100"
    )
    assert (answered.number, answered.outcome) == (2, "answered")
    assert answered.total_ms == pytest.approx(1340)


@pytest.mark.asyncio
async def test_an_interruption_after_the_first_sound_cuts_no_turn() -> None:
    assert [turn.outcome for turn in await observed([*SPOKEN, *ANSWER, (2.0, InterruptionFrame())])] == ["answered"]


@pytest.mark.asyncio
async def test_typed_text_counts_from_its_arrival() -> None:
    arrived = InputTransportMessageFrame({"label": "rtvi-ai", "type": "send-text", "data": {"content": "Hi."}})
    typed = [(0.0, arrived), (0.01, InterruptionFrame()), (0.2, LLMMessagesAppendFrame([], run_llm=True))]
    (turn,) = await observed([*typed, *ANSWER])
    assert (turn.begun_by, turn.outcome) == ("text", "answered")
    assert turn.total_ms == pytest.approx(1340)


@pytest.mark.asyncio
async def test_a_greeting_is_the_agents_own_turn_even_after_a_noise() -> None:
    noise = later(-9, SPOKEN[:2])
    (turn,) = await observed([*noise, (0.0, TTSSpeakFrame("Hello.")), *ANSWER[3:]])
    assert turn.begun_by == "agent"
    assert shown(turn) == {"text to speech": 1100, "audio sent": 1300, "audio played": 1340}


@pytest.mark.asyncio
async def test_a_turn_without_words_and_one_without_answer() -> None:
    wordless = [SPOKEN[0], SPOKEN[1], SPOKEN[3], (3.0, InterruptionFrame())]
    turns = await observed([*wordless, *later(5, SPOKEN), (9.0, Played(EndFrame()))])
    assert [turn.outcome for turn in turns] == ["unanswered", "unanswered"]
    assert str(turns[0]) == "turn 1: no sound; after the end of speech: turn detected +600"


@pytest.mark.asyncio
async def test_an_answer_that_follows_other_speech_without_a_pause() -> None:
    before = [(at, Played(AUDIO)) for at in (-0.5, 1.32, 1.36)]  # it is still being played
    playing = [(1.40, Played(ANSWER[3][1])), (1.44, Played(AUDIO))]
    answer = [(at, frame) for at, frame in ANSWER if not isinstance(frame, BotStartedSpeakingFrame)]
    frames = sorted([*SPOKEN, *answer, *before, *playing], key=lambda item: item[0])
    (turn,) = await observed(frames)
    assert shown(turn)["audio sent"] == 1300
    assert turn.total_ms == pytest.approx(1440)


# ---- the log


def a_turn(number: int, total: float, outcome: str = "answered", begun_by: str = "speech") -> Turn:
    moments = {Moment.FIRST_TOKEN: total / 2} | ({Moment.AUDIO_PLAYED: total} if outcome == "answered" else {})
    return Turn(number, begun_by, outcome, moments)  # type: ignore[arg-type]


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_has_a_line_a_turn_and_a_summary(tmp_path: Path) -> None:
    path, said = tmp_path / "turns.jsonl", list[str]()
    sink = logger.add(said.append, level="INFO", format="{message}")
    log = TurnLog(path)
    conversation = log.next_conversation()
    for number in range(1, 20):
        log.note(conversation, a_turn(number, 100.0 * number))
    log.note(log.next_conversation(), a_turn(1, 700.0, "cut"))
    lines = log.close()
    logger.remove(sink)

    *turns, last = entries(path)
    assert [(turn["conversation"], turn["turn"], turn["total_ms"]) for turn in turns[:2]] == [(1, 1, 100), (1, 2, 200)]
    assert (turns[-1]["conversation"], turns[-1]["outcome"], turns[-1]["total_ms"]) == (2, "cut", None)
    assert said[0].strip() == "conversation 1, " + str(a_turn(1, 100.0))
    spoken = last["summary"]["speech"]
    assert (spoken["turns"], spoken["cut"], spoken["total_ms"]) == (20, 1, {"p50": 1000.0, "p95": 1900.0})
    assert spoken["stages_ms"]["audio played"] == {"p50": 500.0, "p95": 950.0}, "only answered turns count"
    assert lines[0].startswith("first sound after the end of speech: p50 1000 ms, p95 1900 ms (turns: 20, cut before")


def test_spoken_and_typed_turns_are_summed_up_apart(tmp_path: Path) -> None:
    log = TurnLog(None)
    log.note(1, a_turn(1, 1000.0))
    log.note(1, a_turn(2, 200.0, begun_by="text"))
    assert [line.split(" (")[0] for line in log.close() if not line.startswith(" ")] == [
        "first sound after the end of speech: p50 1000 ms, p95 1000 ms",
        "first sound after typed text: p50 200 ms, p95 200 ms",
    ]


def test_a_silent_evening_has_no_summary(tmp_path: Path) -> None:
    assert TurnLog(tmp_path / "turns.jsonl").close() == []
    assert entries(tmp_path / "turns.jsonl") == []


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"agent\.turn_log"):
        TurnLog(tmp_path / "nowhere" / "turns.jsonl")
