"""One owner asks for all it can, another one now and then: what that one hears, in virtual time, of a device whose
launches take what they take on one core of a processor with the demo voice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from fake_backend import CAPABILITIES, Behaviour, FakeCodec, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SAMPLES
from megatalker.engine.admission import AdmissionLimits, refusal
from megatalker.engine.commands import Command, Feed, Submit, Wake
from megatalker.engine.speech.chunks import ChunkPolicy, ChunkQueue, Progress
from megatalker.engine.speech.options import SpeechOptions
from megatalker.engine.speech.request import RequestChecker, TalkerLimits
from megatalker.engine.utterance import Utterance
from megatalker.interfaces import CodecState, DecodeStep, Frame, StreamHandle, StreamRequest
from megatalker.settings import Settings
from virtual_device import TEXT, Arrivals, Costs, Device, Listener, Time, work

pytestmark = pytest.mark.slow

PROMPT: Costs = [1, 25, 50, 100, 200, 300, 600], [5.0, 5.7, 7.6, 12.2, 22.8, 34.5, 79.5]
"""By rows, each prompt by itself."""
FRAMES: Costs = [1, 2, 4, 8], [2.2, 3.4, 5.2, 9.7]
AUDIO: Costs = [1, 8], [2.95, 20.1]
SERVER_S = 0.007
"""Seconds that HTTP, server and client add to each first chunk."""
SEGMENT_FRAMES = 260
CALM_S, PHASE_S = 10.0, 30.0
LIMITS = TalkerLimits("device", seeded_sampling=True, max_positions=4096)


class ProcessorTalker(FakeTalker):
    time: Time

    def prefill(self, requests: Sequence[StreamRequest]) -> list[StreamHandle]:
        handles = []
        for request in requests:
            busy(self.time, float(np.interp(len(request.embeds), *PROMPT)))
            handles.append(self._prefill(request))
        return handles

    def decode(self, steps: Sequence[DecodeStep], *, return_logits: bool = False) -> list[Frame]:
        busy(self.time, float(np.interp(len(steps), *FRAMES)))
        return [self._said(step.stream) for step in steps]

    def _said(self, handle: StreamHandle) -> Frame:
        history = self.streams[handle].history
        history.append(0)
        return Frame(handle, tuple(range(self.config.num_code_groups)) if len(history) <= SEGMENT_FRAMES else None)


class ProcessorCodec(FakeCodec):
    time: Time

    def decode(self, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        for frames in codes:
            busy(self.time, float(np.interp(len(frames), *AUDIO)))
        return [torch.zeros(len(frames) * FRAME_SAMPLES) for frames in codes]


def busy(time: Time, milliseconds: float) -> None:
    time.now += milliseconds * 1e-3 * (1 + 0.15 * time.mishaps.exponential())


@dataclass
class Attack:
    """Requests that one owner begins at :data:`CALM_S`."""

    idle: int = 0
    """Utterances with three words that are left."""
    unread: int = 0
    """Long texts."""


def first_p95(checkpoint: Checkpoint, attack: Attack) -> float:
    """Return the p95 of the other owner's requests, one a second on average, during eight attacks."""
    return float(np.quantile([s for seed in range(1, 9) for s in firsts(checkpoint, attack, seed)], 0.95))


def firsts(checkpoint: Checkpoint, attack: Attack, seed: int) -> list[float]:
    talkers = {"device": Behaviour(capabilities=replace(CAPABILITIES, max_streams=8))}
    device, settings = Device(talkers=talkers, talker=ProcessorTalker, codec=ProcessorCodec), Settings(max_wait_s=30.0)
    time, state = device.time, device.state(settings, checkpoint)
    checker, heard, idle = RequestChecker(settings, checkpoint), list[Listener](), list[Utterance]()

    def enter(owner: str, text: str | None, chunks: ChunkQueue, at: float, **options: int) -> Command:
        request, segmenter = checker.check(text, SpeechOptions(seed=1, **options), LIMITS)
        utterance = Utterance(request, segmenter, Progress(1, at, "", ""), chunks, ChunkPolicy(8), None, owner=owner)
        if text is None:
            utterance.update(at)
            idle.append(utterance)
        refused = refusal(state.utterances, utterance, AdmissionLimits.of(settings, 8, math.inf), state.throughput)
        assert refused is None or owner == "attacker", refused
        return Wake() if refused is not None else Submit(utterance)

    def ask(at: float) -> Command:
        heard.append(Listener(time))
        heard[-1].asked_at = at
        return enter("other", TEXT, heard[-1], at, max_frames=25)

    def attacker(text: str | None) -> Callable[[], Command]:
        return lambda: enter("attacker", text, ChunkQueue(), time.now)

    def feed(index: int) -> Callable[[], Command]:
        return lambda: Feed(idle[index], "It is ten ", time.now)

    random = np.random.default_rng(seed)
    moments = [float(at) for at in np.cumsum(random.exponential(1.0, 200)) if at < CALM_S + PHASE_S]
    coming: list[tuple[float, Callable[[], Command]]] = [(at, partial(ask, at)) for at in moments]
    for index in range(attack.idle):
        coming += [(CALM_S + 0.002 * index, attacker(None)), (CALM_S + 0.002 * index + 0.001, feed(index))]
    coming += [(CALM_S + 0.05 + 0.001 * index, attacker(20 * TEXT)) for index in range(attack.unread)]
    work(state, settings, checkpoint, Arrivals(time, coming, until_s=CALM_S + PHASE_S + 5.0))
    return [SERVER_S + one.first_s for one in heard if one.asked_at > CALM_S and one.first_s]


def test_a_first_chunk_comes_at_most_half_as_late_again_as_without_an_attacker(tiny_custom_voice: Checkpoint) -> None:
    calm = first_p95(tiny_custom_voice, Attack())
    assert calm < 0.03
    assert first_p95(tiny_custom_voice, Attack(idle=100)) < 1.5 * calm
    assert first_p95(tiny_custom_voice, Attack(idle=100, unread=16)) < 1.5 * calm
