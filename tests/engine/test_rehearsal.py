"""Launches that an engine makes at its warm-up, to know what they cost."""

import time
from dataclasses import replace

import pytest

from engine_stage import TEXT, Opener, fakes_with
from fake_backend import CAPABILITIES, Behaviour, Fakes
from megatalker.errors import CapacityError
from megatalker.interfaces import StreamRequest

SLOW_S = 0.1


def test_a_slow_engine_knows_after_its_warm_up_what_it_can_sustain(open_engine: Opener) -> None:
    engine = open_engine(fakes_with(on_decode=lambda call: time.sleep(SLOW_S)), max_streams=8)
    assert engine.metrics().sustainable is None
    engine.warmup()
    assert engine.metrics().sustainable is not None
    assert (engine.metrics().frames, engine.metrics().streams, engine.metrics().begun) == (0, 0, 0)


def test_no_stream_is_left_behind_and_no_more_are_tried_than_the_settings_allow(open_engine: Opener) -> None:
    fakes = fakes_with()
    engine = open_engine(fakes, max_streams=5)
    engine.warmup()
    talker = fakes.loaded["fake"]
    assert talker.streams == {}
    assert max(map(len, talker.calls)) == 4
    assert len(engine.speak(TEXT).read_all())


def test_what_is_known_is_not_rehearsed_again_nor_while_somebody_is_served(open_engine: Opener) -> None:
    fakes = fakes_with(frames=None)
    engine = open_engine(fakes, max_frames=10**6, max_untaken_s=1.0, runaway_guard=False)
    with engine.speak(TEXT) as stream:
        next(stream)
        engine.warmup()
        assert len(fakes.loaded["fake"].prefills) == 1
    engine.warmup()
    assert len(fakes.loaded["fake"].prefills) == 1


@pytest.mark.parametrize("frames", [0, 1])
def test_a_talker_that_ends_at_once_is_no_failure(open_engine: Opener, frames: int) -> None:
    fakes = fakes_with(frames=frames)
    engine = open_engine(fakes)
    engine.warmup()
    assert fakes.loaded["fake"].streams == {}
    assert engine.metrics().faulty == {}


def test_a_backend_that_holds_fewer_streams_than_it_promised_is_tried_with_fewer(open_engine: Opener) -> None:
    def refuse(request: StreamRequest) -> None:
        if len(fakes.loaded["fake"].streams) >= 3:
            raise CapacityError("no memory for more")

    fakes = fakes_with(on_prefill=refuse)
    engine = open_engine(fakes)
    engine.warmup()
    assert max(map(len, fakes.loaded["fake"].calls)) == 2
    assert engine.metrics().faulty == {}
    assert len(engine.speak(TEXT).read_all())


def test_a_backend_without_batches_is_given_one_stream(open_engine: Opener) -> None:
    fakes = fakes_with(capabilities=replace(CAPABILITIES, batch=False))
    open_engine(fakes).warmup()
    assert {len(call) for call in fakes.loaded["fake"].calls} == {1}


def test_a_backend_that_fails_at_it_is_replaced_as_if_its_warm_up_had_failed(open_engine: Opener) -> None:
    def fail(call: int) -> None:
        raise RuntimeError("device lost")

    engine = open_engine(Fakes(talkers={"first": Behaviour(on_decode=fail), "second": Behaviour()}))
    engine.warmup()
    assert engine.backend == "second"
    assert "device lost" in engine.metrics().faulty["talker first"]
    assert len(engine.speak(TEXT).read_all())
