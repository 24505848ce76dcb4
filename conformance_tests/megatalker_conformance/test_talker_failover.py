"""Optional: a decoder that takes over another's stream, from the emitted codes, without a seam."""

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import load_talker
from megatalker_conformance.cases import SENTENCES, Cases
from megatalker_conformance.checks import Judge
from megatalker_conformance.engine_harness import FRAMES, EngineHarness
from megatalker_conformance.loading import load_context
from megatalker_conformance.oracle import ORACLE
from megatalker_conformance.recording import Log, WatchedTalker

pytestmark = pytest.mark.optional


def test_the_engine_moves_a_stream_here_without_a_seam(
    engine_harness: EngineHarness,
    registry: BackendRegistry,
    checkpoint: Checkpoint,
    device: torch.device,
    cases: Cases,
    judge: Judge,
    exact_arithmetic: None,
) -> None:
    """Another backend fails at frame 20; this one goes on, the codes are those of an undisturbed run, and it shows."""
    spec = registry.talker(ORACLE)
    first = Log()

    def fail() -> None:
        if first.frames == 20:
            raise RuntimeError("this backend fails at frame 20 on purpose")

    first.on_decode = fail
    failing = WatchedTalker(load_talker(spec, checkpoint, load_context(spec, device, torch.float32)), first)
    log = Log()
    with engine_harness.engine(log, failing=failing) as engine:
        stream = engine_harness.begin(engine, SENTENCES[0], judge.manner, "interleaved")
        received = engine_harness.listen(stream, log)
    assert [(switch.origin, switch.target, switch.frame) for switch in stream.switches] == [("failing", "tested", 20)]
    assert log.frames == 1 + FRAMES - 20  # the engine tests the next backend with a frame that nobody hears
    judge(cases.prompt(SENTENCES[0], "interleaved", judge.manner), received.codes, FRAMES)
