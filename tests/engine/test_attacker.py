"""One owner asks for all it can, another one now and then: what that one hears, in virtual time, of a device whose
launches take what they take on one core of a processor with the demo voice.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from megatalker.checkpoint import Checkpoint
from megatalker.checkpoint.config import FRAME_SECONDS
from megatalker.engine.commands import Command, Feed, Wake
from megatalker.engine.speech.chunks import ChunkQueue
from megatalker.engine.utterance import Utterance
from megatalker.errors import CapacityError
from megatalker.settings import Settings
from megatalker_benchmarks.virtual_engine import TEXT, VirtualEngine, poisson
from megatalker_benchmarks.virtual_machine import PROCESSOR, VirtualClock

pytestmark = pytest.mark.slow

SERVER_S = 0.007
"""Seconds that HTTP, server and client add to each first chunk."""
SEGMENT_FRAMES = 260
CALM_S, PHASE_S = 10.0, 30.0


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
    clock, idle = VirtualClock(PROCESSOR, seed), list[Utterance]()
    engine = VirtualEngine(checkpoint, clock, Settings(max_streams=8, max_wait_s=30.0), SEGMENT_FRAMES)

    def attack_with(text: str | None) -> Command:
        utterance = engine.request(text, ChunkQueue(), SEGMENT_FRAMES * FRAME_SECONDS, "attacker")
        if text is None:
            idle.append(utterance)
        with suppress(CapacityError):
            engine.submit(utterance)
        return Wake()

    def feed(index: int) -> Callable[[], Command]:
        return lambda: Feed(idle[index], "It is ten ", clock.now)

    for index in range(attack.idle):
        engine.arrivals.add(CALM_S + 0.002 * index, partial(attack_with, None))
        engine.arrivals.add(CALM_S + 0.002 * index + 0.001, feed(index))
    for index in range(attack.unread):
        engine.arrivals.add(CALM_S + 0.05 + 0.001 * index, partial(attack_with, 20 * TEXT))
    others = poisson(1.0, CALM_S + PHASE_S, seed, speech_s=2.0, owner="other")
    heard = engine.listen(others, CALM_S + PHASE_S + 5.0)
    assert not any(told.refused for one in heard for told in one.told)
    return [SERVER_S + one.first_s for one in heard if one.caller.at > CALM_S and one.first_s]


def test_a_first_chunk_comes_at_most_half_as_late_again_as_without_an_attacker(tiny_custom_voice: Checkpoint) -> None:
    calm = first_p95(tiny_custom_voice, Attack())
    assert calm < 0.03
    assert first_p95(tiny_custom_voice, Attack(idle=100)) < 1.5 * calm
    assert first_p95(tiny_custom_voice, Attack(idle=100, unread=16)) < 1.5 * calm
