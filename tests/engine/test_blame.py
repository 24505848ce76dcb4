"""A backend that fails is replaced, but not when it fails at one request only: that request is ended, alone."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_stage import TEXT, Opener, codes_of, plain_codes
from fake_backend import CAPABILITIES, Behaviour, FakeCodec, Fakes, FakeTalker
from megatalker.checkpoint import Checkpoint
from megatalker.engine import Chunk, Engine, SpeechStream
from megatalker.errors import BackendFaultError, InvalidRequestError
from megatalker.interfaces import CodecState, DecodeStep, Frame, StreamRequest
from waiting import HANG_S, eventually

POISON = 666
"""The seed of a request at which every backend fails."""
SEEDS = (1, 2, 3)
FRAMES = 30

Poisoner = Callable[[pytest.MonkeyPatch], None]


def fail() -> None:
    raise RuntimeError("overflow")


def in_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = FakeTalker._prefill

    def poisoned(talker: FakeTalker, request: StreamRequest) -> int:
        if request.sampling.seed == POISON:
            fail()
        return prefill(talker, request)

    monkeypatch.setattr(FakeTalker, "_prefill", poisoned)


def in_frame(number: int, failure: Callable[[], None] = fail) -> Poisoner:
    frame = FakeTalker._frame

    def poisoned(talker: FakeTalker, step: DecodeStep) -> Frame:
        stream = talker.streams[step.stream]
        if stream.seed == POISON and len(stream.history) >= number:
            failure()
        return frame(talker, step)

    return lambda monkeypatch: monkeypatch.setattr(FakeTalker, "_frame", poisoned)


def two_talkers() -> Fakes:
    return Fakes(talkers={"first": Behaviour(), "second": Behaviour()})


def together(engine: Engine, *seeds: int) -> list[SpeechStream]:
    with engine.borrow_backends():
        return [engine.speak(TEXT, seed=seed, return_codes=True) for seed in seeds]


def expected(checkpoint: Checkpoint, seed: int) -> list[tuple[int, ...]]:
    return plain_codes(checkpoint, TEXT, seed, "upfront", frames=FRAMES)


@pytest.mark.parametrize("poisoner", [in_prefill, in_frame(0), in_frame(1), in_frame(12)])
def test_a_poisoned_request_is_ended_alone_and_no_backend_for_it(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, poisoner: Poisoner
) -> None:
    poisoner(monkeypatch)
    engine = open_engine(two_talkers())
    for _ in range(3):
        one, poisoned, *others = together(engine, 1, POISON, 2, 3)
        with pytest.raises(InvalidRequestError, match=r"first: .*overflow; second, with it alone: .*overflow"):
            poisoned.read_all()
        assert codes_of(one) == expected(tiny_custom_voice, 1)
        for seed, stream in zip((2, 3), others, strict=True):
            assert codes_of(stream) == expected(tiny_custom_voice, seed)
            assert [switch.target for switch in stream.switches] in ([], ["second", "first"])
    metrics = engine.metrics()
    assert (metrics.faulty, metrics.errors, engine.failure) == ({}, 3, None)


def test_what_a_poisoned_request_said_before_is_heard(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    in_frame(12)(monkeypatch)
    stream = open_engine(two_talkers()).speak(TEXT, seed=POISON)
    heard: list[Chunk] = []
    with pytest.raises(InvalidRequestError):
        heard.extend(stream)
    assert sum(chunk.frames for chunk in heard) == 12


def test_poisoned_requests_one_after_another_retire_nobody(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_prefill(monkeypatch)
    engine = open_engine(two_talkers())
    for _ in range(5):
        with pytest.raises(InvalidRequestError):
            engine.speak(TEXT, seed=POISON).read_all()
    assert engine.metrics().faulty == {}
    assert codes_of(engine.speak(TEXT, seed=1, return_codes=True)) == expected(tiny_custom_voice, 1)


def test_several_poisoned_requests_at_once(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_frame(4)(monkeypatch)
    engine = open_engine(two_talkers())
    poisoned, one, again = together(engine, POISON, 1, POISON)
    for stream in (poisoned, again):
        with pytest.raises(InvalidRequestError):
            stream.read_all()
    assert codes_of(one) == expected(tiny_custom_voice, 1)
    assert engine.metrics().faulty == {}


def test_another_instance_stands_in_where_there_is_one_backend(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_frame(4)(monkeypatch)
    engine = open_engine(Fakes())
    for _ in range(2):
        one, poisoned = together(engine, 1, POISON)
        with pytest.raises(InvalidRequestError, match=r"fake: .*; fake, with it alone: "):
            poisoned.read_all()
        assert codes_of(one) == expected(tiny_custom_voice, 1)
    assert (engine.metrics().faulty, engine.failure) == ({}, None)


@pytest.mark.slow
def test_a_request_at_which_backends_hang_is_ended_alone(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    in_frame(4, lambda: released.wait(HANG_S) and None)(monkeypatch)
    monkeypatch.setattr("megatalker.engine.guarded_calls.COLD_FACTOR", 1)
    engine = open_engine(two_talkers(), step_deadline_s=1.0)
    one, poisoned = together(engine, 1, POISON)
    with pytest.raises(InvalidRequestError, match="did not return within 1 s"):
        poisoned.read_all()
    assert codes_of(one) == expected(tiny_custom_voice, 1)
    assert engine.metrics().faulty == {}
    released.set()


def test_suspects_go_alone_and_others_together(open_engine: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = two_talkers()
    fakes.talkers["first"].on_decode = lambda call: fail() if call == 5 else None
    engine = open_engine(fakes)
    for stream in together(engine, *SEEDS):
        stream.read_all()
    assert [len(call) for call in fakes.loaded["second"].calls[:6]] == [1, 1, 1, 1, 3, 3], "try-out, trials, together"
    assert "overflow" in engine.metrics().faulty["talker first"]


def test_backends_that_fail_at_everything_are_retired(open_engine: Opener) -> None:
    def refuse(_: object) -> None:
        fail()

    fakes = Fakes(talkers={name: Behaviour(on_prefill=refuse) for name in ("first", "second")})
    engine = open_engine(fakes)
    stream = engine.speak(TEXT)
    with pytest.raises(BackendFaultError, match="no talker backend is left"):
        stream.read_all()
    assert set(engine.metrics().faulty) == {"talker first", "talker second"}


def test_nobody_is_to_blame_when_a_suspect_leaves_untried(open_engine: Opener, tiny_custom_voice: Checkpoint) -> None:
    loading = threading.Event()
    go_on = threading.Event()

    def load() -> None:
        loading.set()
        assert go_on.wait(HANG_S)

    fakes = Fakes(talkers={"first": Behaviour(), "second": Behaviour(on_load=load)})
    fakes.talkers["first"].on_decode = lambda call: fail() if call == 5 else None
    engine = open_engine(fakes)
    first, leaving, *others = together(engine, 1, 2, 3, 4)
    assert loading.wait(HANG_S)
    leaving.cancel()
    go_on.set()
    for seed, stream in zip((1, 3, 4), (first, *others), strict=True):
        assert codes_of(stream) == expected(tiny_custom_voice, seed)
    assert (engine.backend, engine.metrics().faulty) == ("second", {})


def test_a_backend_with_fewer_rows_tries_suspects_in_turn(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_frame(4)(monkeypatch)
    fakes = two_talkers()
    fakes.talkers["second"].capabilities = replace(CAPABILITIES, max_streams=1)
    engine = open_engine(fakes)
    one, poisoned, two = together(engine, 1, POISON, 2)
    with pytest.raises(InvalidRequestError):
        poisoned.read_all()
    assert codes_of(one) == expected(tiny_custom_voice, 1)
    assert codes_of(two) == expected(tiny_custom_voice, 2)
    assert engine.metrics().faulty == {}


def test_a_codec_is_not_retired_for_one_request(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, bad = FakeCodec.decode, expected(tiny_custom_voice, POISON)[7]

    def poisoned(codec: FakeCodec, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        if any((item == torch.tensor(bad)).all(1).any() for item in codes):
            fail()
        return decode(codec, states, codes)

    monkeypatch.setattr(FakeCodec, "decode", poisoned)
    engine = open_engine(Fakes(codecs={"first": Behaviour(), "second": Behaviour()}))
    for _ in range(2):
        one, stream, two = together(engine, 1, POISON, 2)
        heard: list[Any] = []
        with pytest.raises(InvalidRequestError, match="codec backends fail"):
            heard.extend(row for chunk in stream for row in chunk.codes.tolist())
        assert len(heard) <= 7
        assert codes_of(one) == expected(tiny_custom_voice, 1)
        assert codes_of(two) == expected(tiny_custom_voice, 2)
    assert engine.metrics().faulty == {}
    eventually(lambda: engine.metrics().active == 0, "all rows are free")


@pytest.mark.parametrize("ends", ["eos", "max_frames"])
def test_speech_that_no_codec_can_make_is_missed_though_its_text_has_ended(
    open_engine: Opener, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    engine, decode = open_engine(), FakeCodec.decode
    frames = 6 if ends == "max_frames" else None
    first = engine.speak(TEXT, seed=POISON, max_frames=frames, return_codes=True)
    last = torch.tensor(codes_of(first)[-1])
    assert first.finish_reason == ends

    def poisoned(codec: FakeCodec, states: Sequence[CodecState], codes: Sequence[Tensor]) -> list[Tensor]:
        if any((item == last).all(1).any() for item in codes):
            fail()
        return decode(codec, states, codes)

    monkeypatch.setattr(FakeCodec, "decode", poisoned)
    stream = engine.speak(TEXT, seed=POISON, max_frames=frames)
    with pytest.raises(InvalidRequestError, match="codec backends fail"):
        stream.read_all()
    assert stream.finish_reason == "error"


@pytest.mark.parametrize("role", ["talkers", "codecs"])
def test_no_request_is_to_blame_where_memory_has_run_out(
    open_engine: Opener, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    kind: Any = {"talkers": FakeTalker, "codecs": FakeCodec}[role]
    decode, calls = kind.decode, itertools.count()

    def short_of_memory(backend: Any, *arguments: Any, **options: Any) -> Any:
        if next(calls) in (0, 2):  # for all, and, after something harmless, for one alone
            raise RuntimeError("can't allocate memory: you tried to allocate 64 bytes")
        return decode(backend, *arguments, **options)

    engine = open_engine(Fakes(**{role: {name: Behaviour() for name in ("first", "second", "third")}}))
    monkeypatch.setattr(kind, "decode", short_of_memory)
    streams = together(engine, *SEEDS)
    for seed, stream in zip(SEEDS, streams, strict=True):
        assert codes_of(stream) == expected(tiny_custom_voice, seed)
    assert set(engine.metrics().faulty) == {f"{role[:-1]} first", f"{role[:-1]} second"}
