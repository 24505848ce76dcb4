"""A short run of ``megatalker bench conversation`` on a fake engine; results lie under ``benchmarks/results``."""

import asyncio
from pathlib import Path

import pytest
import soundfile

from megatalker import Checkpoint, Settings
from megatalker_benchmarks.conversation import converse
from megatalker_pipecat import MegatalkerTTSService
from megatalker_pipecat.agent import services
from megatalker_pipecat.latency import Moment
from pipecat_stage import closing
from session_stage import FRAMES, fakes, pool_of

pytestmark = pytest.mark.slow

THOUGHT_S = 0.3


def test_every_millisecond_to_an_answer_has_its_place(
    tiny_custom_voice: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(fakes(), tiny_custom_voice))
    for name in ("OpenAILLMService", "OpenAISTTService"):
        monkeypatch.setattr(services, name, closing(getattr(services, name)))
    file = tmp_path / "answers.wav"

    turns = asyncio.run(converse(Settings(), 2, THOUGHT_S, file))

    assert [(turn.begun_by, turn.outcome) for turn in turns] == [("speech", "answered")] * 2
    for turn in turns:
        assert set(turn.stages_ms) == set(Moment)
        assert turn.stages_ms[Moment.FIRST_TOKEN] >= 1000 * THOUGHT_S
        assert sum(turn.stages_ms.values()) == pytest.approx(turn.total_ms)
    assert soundfile.info(file).frames >= FRAMES * 1920, "the second answer was heard out"
