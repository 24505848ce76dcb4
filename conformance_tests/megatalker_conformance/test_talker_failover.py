"""Optional: a decoder that takes over another's stream, from the emitted codes, without a seam."""

import pytest
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.plugins import BackendRegistry
from megatalker.plugins.checked import load_talker
from megatalker_conformance.checks import Judge
from megatalker_conformance.loading import load_context
from megatalker_conformance.oracle import ORACLE
from megatalker_conformance.recording import Log, WatchedTalker
from megatalker_conformance.studio import FRAMES, Studio
from megatalker_conformance.utterances import SENTENCES, Utterances

pytestmark = pytest.mark.optional


def test_the_engine_moves_a_stream_here_without_a_seam(
    studio: Studio,
    registry: BackendRegistry,
    checkpoint: Checkpoint,
    device: torch.device,
    utterances: Utterances,
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
    with studio.engine(log, failing=failing) as engine:
        stream = studio.begin(engine, SENTENCES[0], judge.manner, "interleaved")
        heard = studio.listen(stream, log)
    assert [(switch.origin, switch.target, switch.frame) for switch in stream.switches] == [("failing", "tested", 20)]
    assert log.frames == FRAMES - 20
    judge(utterances.prompt(SENTENCES[0], "interleaved", judge.manner), heard.codes, FRAMES)
